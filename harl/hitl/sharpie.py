"""Be a runner for a SHARPIE site: `python -m harl.hitl.sharpie --hostname H --port P --mapping FILE runserver`.

The functions have the names and arguments of the platform's own runner; docs/sharpie.md says where they do better.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harl.envs.api import VectorEnv
from harl.hitl.sharpie_site import command
from harl.hitl.sharpie_site.entrance import load_episode
from harl.hitl.sharpie_site.frames import send_message
from harl.hitl.sharpie_site.mapping import EnvironmentEntry
from harl.hitl.sharpie_site.messages import sanitize_data
from harl.hitl.sharpie_site.overrides import get_agent_data, get_policy_actions, override_actions, override_rewards
from harl.hitl.sharpie_site.receiving import receive_message
from harl.hitl.sharpie_site.room import load_environment, load_policies, run_episode, start_experiment
from harl.hitl.sharpie_site.serving import Makers
from harl.hitl.sharpie_site.updates import train_policies, update_single_agent

__all__ = [
    "get_agent_data",
    "get_policy_actions",
    "load_environment",
    "load_episode",
    "load_policies",
    "main",
    "override_actions",
    "override_rewards",
    "receive_message",
    "run_episode",
    "sanitize_data",
    "send_message",
    "start_experiment",
    "train_policies",
    "update_single_agent",
]


@functools.cache
def _team(run: str, checkpoint: str) -> Any:
    """A trained team; rooms share its weights."""
    import torch

    import harl

    torch.set_num_threads(1)  # rooms are threads already
    return harl.load(run, checkpoint)


def _load(run: str, checkpoint: str) -> Any:
    team = _team(run, checkpoint)
    return type(team)(team.config, team.layout, team.team, team.env_steps)


def _environment(entry: EnvironmentEntry) -> VectorEnv:
    from harl.config import build_config, from_dict, to_dict
    from harl.registry import make_envs

    if entry.run is not None:
        return make_envs(_team(entry.run, "latest").config.env, 1, render=True)
    base = to_dict(build_config([f"env={entry.name}"]))
    return make_envs(from_dict({**base, "env": _merged(base["env"], entry.settings)}).env, 1, render=True)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The section with changes, also in the sections within it."""
    return {**base, **{k: _merged(base[k], v) if isinstance(base.get(k), Mapping) else v for k, v in changes.items()}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a site from the command line; `--help` lists what can be given."""
    sys.exit(command.run(sys.argv[1:] if arguments is None else arguments, Makers(_load, _environment)))


if __name__ == "__main__":
    main()
