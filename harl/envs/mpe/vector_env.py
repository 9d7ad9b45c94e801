"""`MPEVectorEnv`: the particle worlds behind the environment contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import BoolArray, EnvError, EnvStep, FloatArray, VectorEnv
from harl.envs.ends import EndPictures
from harl.envs.mpe.controls import BoxControls, Controls, DiscreteControls
from harl.envs.mpe.options import STATE_TYPES, check_choice, check_count, checked_seeds, make_layout, make_scenario
from harl.envs.mpe.rendering import Renderer
from harl.envs.mpe.scene import draw_scene
from harl.envs.mpe.world import PHYSICS, World


class MPEVectorEnv(VectorEnv):
    """N copies of a Multi-Agent Particle Environment, all stepped by the same array operations.

    Args:
        num_envs: N, at least 1.
        scenario: `simple_spread`, `simple_reference` or `simple_speaker_listener`.
        continuous_actions: Box actions in [0, 1] instead of Discrete ones. They are used as they come, not clipped.
        physics: `mpe2` equals the package of that name step for step; `classic` equals pettingzoo 1.22.2, on which the
            published curves were made (other order of integration, agents charged for colliding with themselves,
            continuous controls the other way round).
        state_type: `EP`, the observations of all agents one after the other at their own widths, the same for all; or
            `FP`, the same followed by the one-hot index of the agent.
        max_cycles: steps after which an episode is truncated; episodes end in no other way.
        local_ratio: share of an agent's own reward, the rest being the team's, in [0, 1]; None means 0.5. Not for
            `simple_speaker_listener`, where the reward is the same for both.
        N: number of agents and of landmarks of `simple_spread`; None means 3.

    Raises:
        ValueError: an argument is not one of those allowed.
    """

    name = "mpe"
    can_save_state = True
    can_restart = True
    episode_limit: int

    def __init__(
        self,
        num_envs: int,
        scenario: str = "simple_spread",
        continuous_actions: bool = False,
        physics: str = "mpe2",
        state_type: str = "EP",
        max_cycles: int = 25,
        local_ratio: float | None = None,
        N: int | None = None,
    ) -> None:
        check_choice("physics", physics, PHYSICS)
        check_choice("state_type", state_type, STATE_TYPES)
        check_count("num_envs", num_envs)
        check_count("max_cycles", max_cycles)
        self.num_envs, self.scenario, self.episode_limit = num_envs, scenario, max_cycles
        self._task = make_scenario(scenario, local_ratio, N)
        self._world = World(self._task, num_envs, PHYSICS[physics])
        self._controls: Controls = (
            BoxControls(self._task, PHYSICS[physics].box_direction)
            if continuous_actions
            else DiscreteControls(self._task)
        )
        self._graded_speech = continuous_actions
        self._renderer = Renderer(self._task, continuous_actions)
        self._ends = EndPictures(lambda env: self.render(env))
        self.layout = make_layout(self._task, self._controls, state_type)

        agents, widest = self._task.num_agents, max(self._task.observation_widths)
        self._action_shape = (num_envs, agents, self.layout.action_dim)
        self._sight = np.zeros((agents, widest, num_envs))
        own_columns = np.arange(widest) < np.array(self._task.observation_widths)[:, None]
        self._state_columns = None if own_columns.all() else np.flatnonzero(own_columns)
        self._identities = np.eye(agents, dtype=np.float32)
        self._active = np.ones((num_envs, agents, 1), np.float32)
        self._terminated = np.zeros((num_envs, agents), np.bool_)

        # Fresh seeds, so that an environment that nobody seeds is not the same in every process.
        self._seeds = (np.random.SeedSequence().generate_state(num_envs, np.uint64) >> np.uint64(1)).astype(np.int64)
        self._episodes = np.full(num_envs, -1, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._started = False

    def reset(self, seeds: list[int] | None = None) -> EnvStep:
        if seeds is not None:
            self._seeds = checked_seeds(seeds, self.num_envs)
            self._episodes[:] = -1
        self._begin_episodes(np.arange(self.num_envs))
        self._started = True
        return self.observe()

    def step(self, actions: FloatArray) -> EnvStep:
        if not self._started:
            raise EnvError(f"{self.name}: call reset before step")
        actions = np.asarray(actions, np.float32)
        if actions.shape != self._action_shape:
            raise ValueError(
                f"{self.scenario}: actions must have shape {self._action_shape} (environments, agents, widest action), "
                f"not {actions.shape}"
            )
        if self._ends.watched:
            self._ends.forget()
        self._controls.apply(actions, self._world)
        self._world.advance()
        rewards = self._task.rewards(self._world).T.astype(np.float32, order="C")[:, :, None]
        self._steps += 1
        ended = self._steps >= self.episode_limit
        obs, share_obs = self._observations()
        final_obs = final_share_obs = None
        if ended.any():
            final_obs, final_share_obs = obs, share_obs
            over = np.flatnonzero(ended)
            if self._ends.watched:
                self._ends.draw(over.tolist())
            self._begin_episodes(over)
            obs, share_obs = self._observations()
        return self._record(obs, share_obs, rewards, ended, final_obs, final_share_obs)

    def restart(self, envs: Sequence[int]) -> EnvStep:
        for env_index in envs:
            self._check_shown(env_index, "restart")
        self._begin_episodes(np.asarray(envs, np.intp))
        return self.observe()

    def observe(self) -> EnvStep:
        """What agents see now, as `reset` would return it, without changing anything; useful after `set_state`."""
        obs, share_obs = self._observations()
        rewards = np.zeros((self.num_envs, self._task.num_agents, 1), np.float32)
        return self._record(obs, share_obs, rewards, np.zeros(self.num_envs, np.bool_))

    def get_state(self) -> dict[str, Any]:
        """Copies of all that the future depends on, environments first.

        `seeds`, `episodes`, `steps` (N,) int64: the random stream, the index of the episode in it, and the steps taken
        in the episode. `agent_positions`, `agent_velocities` (N, A, 2), `landmark_positions` (N, L, 2), `speech`
        (N, A, words) float64. `goals` (N, goals) int64, landmark indices.
        """
        return {name: np.moveaxis(array, -1, 0).copy() for name, array in self._state_arrays().items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_state` gave; any of its arrays may have been changed.

        Raises:
            ValueError: an array is missing, unknown, or of the wrong shape, or a goal is no landmark.
        """
        own = self._state_arrays()
        if state.keys() != own.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise ValueError(f"{self.scenario}: state has no {missing} and has unknown {unknown}")
        given = {name: np.asarray(state[name], array.dtype) for name, array in own.items()}
        for name, array in own.items():
            expected = (array.shape[-1], *array.shape[:-1])
            if given[name].shape != expected:
                raise ValueError(f"{self.scenario}: {name} must have shape {expected}, not {given[name].shape}")
        landmarks = self._task.num_landmarks
        if ((given["goals"] < 0) | (given["goals"] >= landmarks)).any():
            raise ValueError(f"{self.scenario}: goals must be landmark indices from 0 to {landmarks - 1}")
        for name, array in own.items():
            array[...] = np.moveaxis(given[name], 0, -1)
        self._started = bool((self._episodes >= 0).all())
        self._prepare()

    def render(self, env_index: int = 0) -> NDArray[np.uint8]:
        """Picture (700, 700, 3) by the renderer of the `mpe2` package; no display is needed.

        Raises:
            ValueError: there is no such environment.
            EnvError: no episode has begun.
        """
        self._check_shown(env_index, "render")
        one = slice(env_index, env_index + 1)
        beginning, _ = self._world.beginning(self._seeds[one], self._episodes[one])
        return self._renderer.draw(self._world, env_index, camera_range=float(np.abs(beginning).max()))

    def scene(self, env_index: int = 0) -> dict[str, Any]:
        """The bodies of one environment, their goals as colours, and what was said; raises as `render` does."""
        self._check_shown(env_index, "scene")
        return draw_scene(self._task, self._world, env_index, graded_speech=self._graded_speech)

    def watch_ends(self, env_indices: Iterable[int]) -> bool:
        self._ends.watch(env_indices)
        return True

    def render_end(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        return self._ends.get(env_index)

    def close(self) -> None:
        self._renderer.close()

    def _check_shown(self, env_index: int, wanted: str) -> None:
        if not 0 <= env_index < self.num_envs:
            raise ValueError(f"{self.scenario}: environment {env_index} is not one of 0 to {self.num_envs - 1}")
        if not self._started:
            raise EnvError(f"{self.name}: call reset before {wanted}")

    def _begin_episodes(self, where: NDArray[np.intp]) -> None:
        self._episodes[where] += 1
        self._steps[where] = 0
        self._world.scatter(where, self._seeds[where], self._episodes[where])
        self._prepare()

    def _prepare(self) -> None:
        """Bring what is derived from the world's state up to date after it was set from outside."""
        self._world.measure()
        self._task.begin(self._world)

    def _observations(self) -> tuple[FloatArray, FloatArray]:
        """Observations and central states of the world as it is."""
        self._task.observe(self._world, self._sight)
        obs = self._sight.transpose(2, 0, 1).astype(np.float32, order="C")
        agents = self._task.num_agents
        state = obs.reshape(self.num_envs, -1)
        if self._state_columns is not None:
            state = state.take(self._state_columns, axis=1)
        width = state.shape[1]
        if self.layout.state_type == "EP":
            # Every agent's entry is the same memory. Unlike `np.broadcast_to` this is quick, and writable, without
            # which torch would complain of the array.
            strides = (state.strides[0], 0, state.strides[1])
            return obs, np.ndarray((self.num_envs, agents, width), np.float32, state, strides=strides)
        share_obs = np.empty((self.num_envs, agents, width + agents), np.float32)
        share_obs[:, :, :width] = state[:, None]
        share_obs[:, :, width:] = self._identities
        return obs, share_obs

    def _record(
        self,
        obs: FloatArray,
        share_obs: FloatArray,
        rewards: FloatArray,
        ended: BoolArray,
        final_obs: FloatArray | None = None,
        final_share_obs: FloatArray | None = None,
    ) -> EnvStep:
        return EnvStep(
            obs=obs,
            share_obs=share_obs,
            available_actions=None,
            active=self._active,
            rewards=rewards,
            terminated=self._terminated,
            truncated=ended[:, None].repeat(self._task.num_agents, axis=1),
            ended=ended,
            final_obs=final_obs,
            final_share_obs=final_share_obs,
        )

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state themselves, environments last."""
        return {
            "seeds": self._seeds,
            "episodes": self._episodes,
            "steps": self._steps,
            "agent_positions": self._world.agents,
            "agent_velocities": self._world.velocities,
            "landmark_positions": self._world.landmarks,
            "speech": self._world.speech,
            "goals": self._world.goals,
        }
