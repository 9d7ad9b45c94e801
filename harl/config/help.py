"""What `python -m harl.train --help` says: what can be chosen, every key, and the flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from harl.config.composition import compose
from harl.config.overrides import open_tree

_TEXT = """\
python -m harl.train [group=choice …] [key=value …] [flags]

Trains a team; with resume=<run folder> it continues a run.

Groups (group=choice); files that others only inherit from are left out:
{groups}

Keys (key=value), with the values that they have with these choices; the files in {folder} say what each does:
{keys}
Flags:
  -m, --multirun       one run for each combination of values: -m algo=happo,mappo seed=1,2,3
  --cfg job            show the whole configuration that this command line makes, and stop
  --config-dir FOLDER  a folder with groups and choices of your own
  --hydra-help         the flags of Hydra
"""


def help_text(overrides: Sequence[str], extra_config_dirs: Sequence[str | Path]) -> str:
    """The help for what else is typed: keys depend on the algorithm and the environment.

    Raises:
        ConfigError: everything that is wrong with the overrides.
    """
    tree = open_tree(overrides, "config", extra_config_dirs)
    groups = "\n".join(f"  {group}: {', '.join(tree.choices(group))}" for group in tree.groups())
    keys = OmegaConf.to_yaml(compose(overrides, extra_config_dirs=extra_config_dirs))
    return _TEXT.format(groups=groups, keys=keys, folder=tree.roots[0])
