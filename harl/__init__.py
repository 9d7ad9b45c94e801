"""Training of teams of learning agents, with people in the loop where they are wanted.

`make_runner` and `load` are what a script needs; `python -m harl.train` and `python -m harl.render` are the same from a
command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harl.runners import Policy, Runner

__version__ = "0.1.0"

__all__ = ["__version__", "load", "make_runner"]


def make_runner(overrides: Sequence[str] = (), bridge: Any = None) -> Runner:
    """A runner as a command line would make it: `make_runner(["algo=happo", "env=mpe", "seed=3"]).run()`.

    Args:
        overrides: what would be typed after `python -m harl.train`.
        bridge: how people take part; None for what the section `hitl` asks for.

    Raises:
        harl.config.ConfigError: everything that is wrong with the overrides.
    """
    from harl.config import ConfigError
    from harl.hitl import make_bridge
    from harl.runners.job import configure, runner_for

    if isinstance(overrides, str):
        raise ConfigError([f"overrides={overrides!r}: must be a list of texts, as ['algo=happo', 'seed=3']"])
    config = configure(overrides)
    return runner_for(config, make_bridge(config.run.hitl) if bridge is None else bridge)


def load(run: str | Path, checkpoint: str | int = "best", device: str = "cpu") -> Policy:
    """The trained team of a run folder: `load("outputs/…").act(obs)`.

    Args:
        run: the run folder, or a checkpoint in it.
        checkpoint: "best" (by evaluation; the newest where there was none), "latest", or environment steps.
        device: where the networks shall live, as torch names it.
    """
    from harl.runners.policy import load_policy

    return load_policy(run, checkpoint, device)
