"""How episodes end, for those who watch: the picture before the environment starts the next one within the step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harl.envs.api import EnvError, VectorEnv
from harl.envs.mpe import MPEVectorEnv
from harl.envs.parallel import ParallelVectorEnv
from tests.envs.fixtures import ConstReward, Identity

LENGTH = 3


class Shown(Identity):
    """Can be drawn: every pixel is the number of the step."""

    def __init__(self, length: int) -> None:
        super().__init__(T=length)
        self.render_mode = "rgb_array"


KINDS: dict[str, Callable[[int], VectorEnv]] = {
    "mpe": lambda length: MPEVectorEnv(2, "simple_reference", max_cycles=length),
    "parallel": lambda length: ParallelVectorEnv(functools.partial(Shown, length), 2, render=True),
}


def played(env: VectorEnv, steps: int = 2 * LENGTH) -> list[Any]:
    """Seeded steps with random actions; all that each gave, as bytes."""
    rng, layout = np.random.default_rng(5), env.layout
    env.reset([1, 2])
    found = []
    for _ in range(steps):
        actions = rng.integers(2, size=(2, layout.num_agents, layout.action_dim)).astype(np.float32)
        step = env.step(actions)
        arrays = (step.obs, step.share_obs, step.rewards, step.truncated, step.ended, step.final_obs)
        found.append([None if array is None else array.tobytes() for array in arrays])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_state_is_drawn_before_the_next_episode_begins(kind: str) -> None:
    env, longer = KINDS[kind](LENGTH), KINDS[kind](9)
    assert env.watch_ends([1])
    played(longer, LENGTH)
    played(env, LENGTH - 1)
    assert env.render_end(1) is None
    played(env, LENGTH)
    picture = env.render_end(1)
    assert picture is not None
    np.testing.assert_array_equal(picture, longer.render(1))
    assert (picture != env.render(1)).any()
    assert env.render_end(0) is None  # nobody watches it
    played(env, LENGTH + 1)
    assert env.render_end(1) is None  # it ended in an earlier step
    env.watch_ends([])
    played(env, LENGTH)
    assert env.render_end(1) is None


@pytest.mark.parametrize("kind", KINDS)
def test_who_watches_changes_nothing(kind: str) -> None:
    alone, watched = KINDS[kind](LENGTH), KINDS[kind](LENGTH)
    watched.watch_ends([0, 1])
    assert played(watched) == played(alone)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drawn_where_nobody_watches(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, drawn = KINDS[kind](LENGTH), []
    monkeypatch.setattr(env, "render", drawn.append)
    played(env)
    assert drawn == []
    env.watch_ends([1])
    played(env)
    assert drawn == [1, 1]


def test_a_picture_that_cannot_be_drawn_stops_no_step() -> None:
    env = ParallelVectorEnv(functools.partial(ConstReward, T=LENGTH), 2, render=True)  # its render() gives None
    env.watch_ends([0])
    played(env, LENGTH)
    with pytest.raises(EnvError, match="render"):
        env.render_end(0)


def test_environments_need_not_be_able_to() -> None:
    class Plain(MPEVectorEnv):
        watch_ends, render_end = VectorEnv.watch_ends, VectorEnv.render_end

    env = Plain(2, max_cycles=LENGTH)
    assert not env.watch_ends([0])
    played(env, LENGTH)
    assert env.render_end(0) is None
