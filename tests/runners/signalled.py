"""`python -m tests.runners.signalled <place> <signal> <times> <overrides …>`: harl.train, which signals itself.

The signal comes `times` times at the third call of `place` (module.Class.method), or at the first of
those that come seldom.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from harl import train


def main() -> None:
    place, number, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv[1:] = sys.argv[4:]
    module, cls, name = place.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), cls)
    method, calls = getattr(owner, name), 0
    first = name in ("_open_folder", "save", "eval")

    def signalled(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (1 if first else 3):
            for _ in range(times):
                os.kill(os.getpid(), number)
        return method(*args, **kwargs)

    setattr(owner, name, signalled)
    train.main()


if __name__ == "__main__":
    main()
