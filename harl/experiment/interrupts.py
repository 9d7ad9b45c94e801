"""Stopping at a good moment: a signal asks, the training loop finishes its step and saves."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_NOTICE = "finishing the step, saving; press Ctrl-C again to stop at once\n"


class GracefulStop:
    """Within the block, SIGTERM and SIGINT (Ctrl-C) set `requested` instead of ending the process.

    A SIGINT after the first signal raises `KeyboardInterrupt` at once. Outside the main thread, where Python cannot
    handle signals, nothing changes. The handlers from before come back at the end of the block.
    """

    requested: bool
    """Whether a signal has come."""
    signal: signal.Signals | None
    """The first signal that came."""

    def __init__(self) -> None:
        self.requested = False
        self.signal = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 143 after SIGTERM, 130 after SIGINT, 0 when no signal came."""
        return 0 if self.signal is None else 128 + int(self.signal)

    def __enter__(self) -> Self:
        self.requested, self.signal = False, None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.requested, self.signal = True, signal.Signals(number)
        # Not `print`: the signal may have come in the middle of one, which must not be entered twice.
        os.write(2, ("\n" * os.isatty(2) + _NOTICE).encode())
