"""Environments that installed packages bring: entry points in the group `harl.envs`.

    [project.entry-points."harl.envs"]
    meet = "my_package.tag:Meet"

makes `env=meet` mean `env=pettingzoo env.entry_point=my_package.tag:Meet`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from hydra.core.config_store import ConfigStore

GROUP = "harl.envs"


def installed_envs() -> dict[str, str]:
    """Name → module:function of every environment that an installed package brings."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def register(taken: list[str]) -> list[str]:
    """Make them choices of the group `env`, except those whose name is `taken`; returns their names."""
    found = {name: value for name, value in installed_envs().items() if name not in taken}
    for name, value in found.items():
        node = {"defaults": ["pettingzoo", "_self_"], "entry_point": value}
        ConfigStore.instance().store(name=name, node=node, group="env", provider="harl.envs")
    return sorted(found)
