"""Any PettingZoo `ParallelEnv` as a `VectorEnv`: N copies in this process, stepped one after the other.

What one environment gives is checked and written by `ParallelAdapter`; this module owns the arrays and the copies.
Values are passed on as they are, NaN included: the runner stops a run that meets one and names the place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import EnvError, EnvStep, FloatArray, VectorEnv
from harl.envs.ends import EndPictures
from harl.envs.entry_point import EnvFactory, scenario_name
from harl.envs.parallel_adapter import MAX_METRICS, ParallelAdapter, episode_limit, fold_seed
from harl.envs.parallel_arrays import StepArrays
from harl.envs.parallel_convert import callable_at, to_parallel


class ParallelVectorEnv(VectorEnv):
    """N `ParallelEnv`s, made by calling `make_env` N times, behind the `VectorEnv` contract.

    Args:
        make_env: returns a new `ParallelEnv`, an AEC environment that steps in cycles, or a `gymnasium.Env`.
        num_envs: how many copies.
        state_type: "EP" (one central state) or "FP" (one for each agent; see `parallel_state`).
        name, scenario: what the environment is called in run folders and messages.
        render: whether `make_env` builds environments that can be rendered (`render_mode="rgb_array"`).

    Raises:
        EnvError: an environment, already when it is built and reset for the first time, is not as it should be.
    """

    can_restart = True

    def __init__(
        self,
        make_env: Callable[[], Any],
        num_envs: int,
        state_type: str = "EP",
        name: str = "pettingzoo",
        scenario: str = "custom",
        render: bool = False,
    ) -> None:
        if num_envs < 1:
            raise EnvError(f"{name} {scenario}: num_envs is {num_envs}, it must be at least 1")
        self.num_envs = num_envs
        self.name = name
        self.scenario = scenario
        self._renders = render
        self._ends = EndPictures(lambda env: self.render(env))
        self._adapters: list[ParallelAdapter] = []
        self._built: list[Any] = []
        noticed: set[str] = set()
        try:
            for index in range(num_envs):
                label = f"{name} {scenario}, environment {index}"
                env = to_parallel(make_env())
                self._built.append(env)
                blueprint = self._adapters[0].blueprint if self._adapters else None
                self._adapters.append(ParallelAdapter(env, state_type, label, blueprint, noticed))
                self._adapters[-1].at_end = functools.partial(self._ends.draw, (index,))
        except BaseException:
            self.close()
            raise
        self.layout = self._adapters[0].blueprint.layout
        self.episode_limit = episode_limit(self._adapters[0].env)
        self.can_save_state = all(
            callable_at(adapter.env.unwrapped, "get_state") and callable_at(adapter.env.unwrapped, "set_state")
            for adapter in self._adapters
        )
        self._arrays = StepArrays.allocate(self.layout, num_envs)
        self._rows = [self._arrays.row(index) for index in range(num_envs)]
        self._actions_shape = (num_envs, self.layout.num_agents, self.layout.action_dim)
        self._metric_names: list[str] = []

    def reset(self, seeds: list[int] | None = None) -> EnvStep:
        """Start an episode in every environment; each seed is used once, folded to 32 bits (`fold_seed`)."""
        if seeds is not None and len(seeds) != self.num_envs:
            raise EnvError(f"{self.name} {self.scenario}: {len(seeds)} seeds for {self.num_envs} environments")
        for index, (adapter, row) in enumerate(zip(self._adapters, self._rows, strict=True)):
            adapter.reset(row, None if seeds is None else fold_seed(seeds[index]))
        return self._arrays.record(self.layout, {})

    def step(self, actions: FloatArray) -> EnvStep:
        if actions.shape != self._actions_shape:
            raise EnvError(
                f"{self.name} {self.scenario}: actions have shape {actions.shape}, expected {self._actions_shape}"
            )
        if self._ends.watched:
            self._ends.forget()
        for adapter, row, action in zip(self._adapters, self._rows, actions, strict=True):
            adapter.step(action, row)
        return self._arrays.record(self.layout, self._collect_metrics())

    def restart(self, envs: Sequence[int]) -> EnvStep:
        for index in envs:
            if not 0 <= index < self.num_envs:
                raise ValueError(
                    f"{self.name} {self.scenario}: environment {index} is not one of 0 to {self.num_envs - 1}"
                )
        self._arrays.clear_outcome()
        for index in envs:
            self._adapters[index].reset(self._rows[index])
        return self._arrays.record(self.layout, {})

    def get_state(self) -> dict[str, Any]:
        if not self.can_save_state:
            return super().get_state()
        return {"environments": [adapter.get_state() for adapter in self._adapters]}

    def set_state(self, state: dict[str, Any]) -> None:
        if not self.can_save_state:
            return super().set_state(state)
        saved = state["environments"]
        if len(saved) != self.num_envs:
            raise EnvError(
                f"{self.name} {self.scenario}: the state is of {len(saved)} environments, not {self.num_envs}"
            )
        for adapter, one in zip(self._adapters, saved, strict=True):
            adapter.set_state(one)
        return None

    def render(self, env_index: int = 0) -> NDArray[np.uint8]:
        if not self._renders:
            raise EnvError(f"{self.name} {self.scenario} was built without rendering; build it with render=True")
        picture = self._adapters[env_index].env.render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[-1] != 3:
            received = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise EnvError(
                f"{self.name} {self.scenario}: render() must return a picture (height, width, 3), received {received}; "
                'the environment must take render_mode="rgb_array" when it is built and draw to an array'
            )
        return picture.astype(np.uint8, copy=False)

    def watch_ends(self, env_indices: Iterable[int]) -> bool:
        self._ends.watch(env_indices)
        return True

    def render_end(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        return self._ends.get(env_index)

    def close(self) -> None:
        while self._built:
            self._built.pop().close()

    def _collect_metrics(self) -> dict[str, NDArray[np.float64]]:
        columns: dict[str, NDArray[np.float64]] = {}
        for index, adapter in enumerate(self._adapters):
            for name, value in adapter.metrics.items():
                if name not in columns:
                    if name not in self._metric_names:
                        if len(self._metric_names) >= MAX_METRICS:
                            continue
                        self._metric_names.append(name)
                    columns[name] = np.full(self.num_envs, np.nan)
                columns[name][index] = value
        return columns


def make_parallel_vector_env(
    entry_point: str, kwargs: dict[str, Any], num_envs: int, state_type: str, render: bool = False
) -> ParallelVectorEnv:
    """Build N environments from an entry point such as "mpe2.simple_spread_v3:parallel_env".

    Raises:
        EnvError: the entry point, a keyword argument or the environment is wrong; found before any step is taken.
    """
    factory = EnvFactory(entry_point, kwargs, render)
    factory.check()
    return ParallelVectorEnv(factory, num_envs, state_type, "pettingzoo", scenario_name(entry_point), render)
