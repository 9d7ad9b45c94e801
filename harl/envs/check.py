"""Check an environment of your own: `python -m harl.envs.check my_pkg.my_module:make_env size=5`.

Builds it, plays random episodes, and says in plain words what is right, what is worth a look and what is wrong; the
exit status is 1 if anything is wrong. Nothing is learned and nothing is written.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harl.envs import parallel_contract as contract
from harl.envs.api import EnvError, EnvStep, FloatArray
from harl.envs.check_play import Findings, Play, random_row
from harl.envs.entry_point import EnvFactory
from harl.envs.parallel import ParallelVectorEnv
from harl.envs.parallel_convert import to_parallel

DETERMINISM_STEPS = 200
VECTOR_STEPS = 100


def check_environment(entry_point: str, kwargs: dict[str, Any], episodes: int = 3, seed: int = 1) -> Findings:
    """Run all checks and return what was found; wrong environments are reported, not raised."""
    findings = Findings()
    factory = EnvFactory(entry_point, kwargs)
    env = None
    with findings.collecting("construction"):
        factory.check()
        env = to_parallel(factory())
        findings.right(f"{entry_point} is built")
    if env is None:
        return findings
    play = Play(env, findings, np.random.default_rng(seed))
    if play.read_spaces():
        play.episodes(episodes, seed)
    with findings.collecting("close"):
        env.close()
    if not findings.problems:
        _check_vector(factory, findings, seed)
        _check_determinism(factory, findings, seed)
    else:
        findings.note("determinism was not checked: mend what is wrong first")
    play.summarise()
    return findings
