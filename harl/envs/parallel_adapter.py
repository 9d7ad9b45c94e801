"""One `ParallelEnv` behind the contract of `VectorEnv`: it writes what its environment gives into rows of arrays.

Agents have fixed slots in the order of `possible_agents`. An agent takes part ("is alive") from the reset, or from the
step in which it first appears in `env.agents`, until it is flagged as ended or is gone from `env.agents`; it does not
come back before the next episode. An agent that has left keeps its slot: zero observation, a mask that allows only the
first action, active 0, reward 0. It is sent no action, unless the environment still lists it in `env.agents`: then it
is sent a neutral one, never the policy's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harl.envs import parallel_contract as contract
from harl.envs.api import EnvError, FloatArray, Layout
from harl.envs.parallel_arrays import StepArrays
from harl.envs.parallel_codec import ActionCodec, ObservationCodec, common_obs_shape, split_observation
from harl.envs.parallel_state import OBSERVATIONS, StatePlan, plan_state

logger = logging.getLogger(__name__)

MAX_RESETS = 100
"""How often an environment that is over right after its reset is reset again before it is given up."""
MAX_METRICS = 32
"""How many names of numbers from infos are passed on."""
EPISODE_LIMIT_NAMES = ("max_cycles", "max_episode_steps")


@dataclass(frozen=True)
class Blueprint:
    """What all copies of an environment have in common; found out once and handed to the others."""

    layout: Layout
    state_plan: StatePlan
    masked: tuple[bool, ...]
    """Which agents give action masks."""


class ParallelAdapter:
    """Resets and steps one `ParallelEnv`, checks what it returns, and writes it into a row of `StepArrays`.

    Without a `blueprint` the environment is reset once, unseeded, to find out its masks and central state. Copies that
    share the set `noticed` log each notice once between them.

    Raises:
        EnvError: the environment does not keep the promises of a `ParallelEnv`, or differs from the blueprint; the
            message begins with `label`.
    """

    def __init__(
        self,
        env: Any,
        state_type: str,
        label: str,
        blueprint: Blueprint | None = None,
        noticed: set[str] | None = None,
    ) -> None:
        self.env = env
        self.label = label
        self.metrics: dict[str, float] = {}
        """Numbers that the environment reported for the last step."""
        self.at_end: Callable[[], object] | None = None
        """Called when an episode is over, before the next one begins."""
        self._seed: int | None = None
        self._steps = 0
        self._episode = 0
        self._noticed = noticed if noticed is not None else set()
        try:
            self.agents = contract.possible_agents(env)
            self._ids = frozenset(self.agents)
            self._slots = {agent: index for index, agent in enumerate(self.agents)}
            self._obs_codecs = [ObservationCodec(agent, env.observation_space(agent)) for agent in self.agents]
            self._action_codecs = [ActionCodec(agent, env.action_space(agent)) for agent in self.agents]
            self.alive = [False] * len(self.agents)
            self._departed = [False] * len(self.agents)
            self._listed: list[Any] = []
            self.blueprint = blueprint or self._probe(state_type)
            self._check_same_layout()
        except EnvError as error:
            raise EnvError(f"{label}: {error}") from error.__cause__

    def reset(self, row: StepArrays, seed: int | None = None) -> None:
        """Start an episode; a `seed` (0 to 2**32 - 1) also seeds the action spaces."""
        self._seed = self._seed if seed is None else seed
        self.metrics = {}
        row.clear_outcome()
        try:
            if seed is not None:
                space_seeds = np.random.SeedSequence(seed).generate_state(len(self.agents))
                for codec, space_seed in zip(self._action_codecs, space_seeds, strict=True):
                    codec.space.seed(int(space_seed))
            self._begin_episode(row, seed)
        except Exception as error:
            self._locate(error)
            raise

    def step(self, actions: FloatArray, row: StepArrays) -> None:
        """Take one step with `actions` (A, action_dim); where the episode ends, begin the next one."""
        try:
            self._step(actions, row)
        except Exception as error:
            self._locate(error)
            raise

    def get_state(self) -> dict[str, Any]:
        """The environment's own state and what the adapter knows of the episode."""
        return {
            "env": self.env.unwrapped.get_state(),
            "listed": [self._slots[agent] for agent in self._listed],
            "alive": list(self.alive),
            "departed": list(self._departed),
            "steps": self._steps,
            "episode": self._episode,
            "seed": self._seed,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` gave."""
        if not self._episode:
            self.env.reset()  # wrappers refuse a step before the first reset
        self.env.unwrapped.set_state(state["env"])
        self._listed = [self.agents[index] for index in state["listed"]]
        listed = contract.listed_agents(self.env, self._ids)
        if listed != self._listed:
            raise EnvError(f"{self.label}: set_state brought back env.agents as {listed}, it was {self._listed}")
        self.alive, self._departed = list(state["alive"]), list(state["departed"])
        self._steps, self._episode, self._seed = state["steps"], state["episode"], state["seed"]

    def _probe(self, state_type: str) -> Blueprint:
        """Reset once to see which agents give masks and what the central state is."""
        observations, infos, _ = self._reset_env(None)
        obs_shape = common_obs_shape(self._obs_codecs)
        # Everything is read once now: a wrong shape is an error of the start, not of some later episode.
        scratch = np.zeros(obs_shape, np.float32)
        masked = []
        for codec, action_codec in zip(self._obs_codecs, self._action_codecs, strict=True):
            mask = None
            if codec.agent in observations:
                observation, mask = split_observation(observations[codec.agent], infos.get(codec.agent))
                codec.write(observation, scratch)
            if mask is not None:
                action_codec.write_mask(mask, np.zeros(action_codec.mask_width, np.float32))
            masked.append(action_codec.mask_width > 0 and (mask is not None or codec.declares_mask))
        plan = plan_state(self.env, self.agents, self._obs_codecs, state_type)
        layout = Layout(
            agents=tuple(str(agent) for agent in self.agents),
            observation_spaces=tuple(codec.space for codec in self._obs_codecs),
            action_spaces=tuple(codec.space for codec in self._action_codecs),
            obs_shape=obs_shape,
            share_obs_shape=plan.shape,
            state_type=state_type,
            has_masks=any(masked),
            state_is_observations=state_type == "EP" and plan.source == OBSERVATIONS,
        )
        return Blueprint(layout, plan, tuple(masked))

    def _check_same_layout(self) -> None:
        layout = self.blueprint.layout
        names = tuple(str(agent) for agent in self.agents)
        if names != layout.agents:
            raise EnvError(f"its agents are {names}, those of the first environment {layout.agents}; copies must agree")
        for index, name in enumerate(names):
            pairs = (
                (self._obs_codecs[index].space, layout.observation_spaces[index]),
                (self._action_codecs[index].space, layout.action_spaces[index]),
            )
            for own, first in pairs:
                if own != first:
                    raise EnvError(f"agent {name!r} has the space {own}, in the first environment {first}; they differ")

    def _begin_episode(self, row: StepArrays, seed: int | None) -> None:
        self._episode += 1
        self._steps = 0
        observations, infos, self._listed = self._reset_env(seed)
        listed = set(self._listed)
        self.alive = [agent in listed for agent in self.agents]
        self._departed = [False] * len(self.agents)
        self._write_view(observations, infos, self.alive, row.obs, row.available_actions)
        self.blueprint.state_plan.write(self.env, self.agents, row.obs, row.state)
        row.active[:, 0] = self.alive

    def _reset_env(self, seed: int | None) -> tuple[dict[Any, Any], dict[Any, Any], list[Any]]:
        """Reset until somebody can act: some environments put their agents on the goal now and then."""
        for _ in range(MAX_RESETS):
            observations, infos = contract.unpack_reset(self.env.reset(seed=seed))
            contract.check_keys("the observations of reset", observations, self._ids)
            contract.check_infos(infos, self._ids, observations)
            listed = contract.listed_agents(self.env, self._ids)
            if listed and observations:
                return observations, infos, listed
            self._notice(logging.INFO, "the episode was over right after reset, without any agent; it is reset again")
            seed = None
        raise EnvError(f"after each of {MAX_RESETS} resets there was no agent in env.agents or no observation")

    def _step(self, actions: FloatArray, row: StepArrays) -> None:
        sent = {}
        for agent in self._listed:
            index = self._slots[agent]
            codec = self._action_codecs[index]
            sent[agent] = codec.decode(actions[index]) if self.alive[index] else codec.neutral()
        self._steps += 1
        observations, rewards, terminations, truncations, infos = contract.unpack_step(self.env.step(sent))
        for what, mapping in (
            ("observations", observations),
            ("rewards", rewards),
            ("terminations", terminations),
            ("truncations", truncations),
        ):
            contract.check_keys(what, mapping, self._ids)
        contract.check_infos(infos, self._ids, observations)
        self.metrics = contract.numeric_metrics(infos, self._ids, MAX_METRICS)
        self._listed = contract.listed_agents(self.env, self._ids)
        before = self.alive
        self.alive = self._settle(rewards, terminations, truncations, row)
        if any(self.alive):
            row.ended[0] = False
            self._write_view(observations, infos, self.alive, row.obs, row.available_actions)
            self.blueprint.state_plan.write(self.env, self.agents, row.obs, row.state)
            row.active[:, 0] = self.alive
            return
        row.ended[0] = True
        self._write_view(observations, infos, before, row.final_obs, row.final_available_actions, final=True)
        self.blueprint.state_plan.write(self.env, self.agents, row.final_obs, row.final_state)
        if self.at_end is not None:
            self.at_end()
        self._begin_episode(row, None)

    def _settle(
        self, rewards: dict[Any, Any], terminations: dict[Any, Any], truncations: dict[Any, Any], row: StepArrays
    ) -> list[bool]:
        """Write rewards and end flags of the step; returns who takes part in the next one."""
        row.rewards[...] = 0.0
        row.terminated[...] = row.truncated[...] = False
        listed = set(self._listed)
        alive = []
        for index, agent in enumerate(self.agents):
            stays = agent in listed
            if not self.alive[index]:
                alive.append(stays and not self._departed[index])
                if rewards.get(agent) is not None and contract.reward_value(agent, rewards[agent]) != 0.0:
                    self._notice(logging.WARNING, f"rewards of agent {agent!r} after it has left are ignored")
                continue
            if stays:
                for what, mapping in (
                    ("reward", rewards),
                    ("termination", terminations),
                    ("truncation", truncations),
                ):
                    if agent not in mapping:
                        raise EnvError(f"agent {agent!r} is in env.agents, but step returned no {what} for it")
            if agent in rewards:
                row.rewards[index, 0] = contract.reward_value(agent, rewards[agent])
            terminated = agent in terminations and contract.flag_value("its termination", agent, terminations)
            truncated = agent in truncations and contract.flag_value("its truncation", agent, truncations)
            if not stays and not terminated and not truncated:
                terminated = True
                self._notice(
                    logging.WARNING,
                    f"agent {agent!r} left env.agents without a termination or truncation; taken as terminated",
                )
            row.terminated[index], row.truncated[index] = terminated, truncated
            ends = terminated or truncated
            self._departed[index] = ends
            alive.append(not ends)
        return alive

    def _write_view(
        self,
        observations: dict[Any, Any],
        infos: dict[Any, Any],
        visible: list[bool],
        obs: FloatArray,
        masks: FloatArray | None,
        final: bool = False,
    ) -> None:
        """Write observations and masks of the `visible` agents, and those of agents that have left for the others."""
        for index, agent in enumerate(self.agents):
            seen = visible[index] and agent in observations
            if visible[index] and not seen:
                if not final:
                    raise EnvError(f"agent {agent!r} is in env.agents, but has no observation")
                self._notice(
                    logging.WARNING,
                    f"agent {agent!r} has no observation in its last step; a cut episode has no final state to value",
                )
            if not seen:
                obs[index] = 0.0
                if masks is not None:
                    self._action_codecs[index].write_noop_mask(masks[index])
                continue
            observation, mask = split_observation(observations[agent], infos.get(agent))
            self._obs_codecs[index].write(observation, obs[index])
            if masks is not None:
                self._write_mask(index, mask, masks[index], final)
            elif mask is not None and self._action_codecs[index].mask_width:
                raise EnvError(
                    f"agent {agent!r} gives an action mask, but gave none at its first reset; give it always"
                )

    def _write_mask(self, index: int, mask: Any, out: FloatArray, final: bool) -> None:
        codec = self._action_codecs[index]
        if mask is None:
            if self.blueprint.masked[index] and not final:
                raise EnvError(f"agent {codec.agent!r} gives no action mask now, but gave one before; give it always")
            codec.write_full_mask(out)
        elif not codec.write_mask(mask, out):
            if not final:
                raise EnvError(f"agent {codec.agent!r} takes part, but its action mask allows no action")
            codec.write_noop_mask(out)

    def _locate(self, error: Exception) -> None:
        """Say where an error happened; one of the environment's own code keeps its type and traceback."""
        seed = f", last seeded with {self._seed}" if self._seed is not None else ""
        place = f"{self.label}, step {self._steps} of episode {self._episode}{seed}"
        if isinstance(error, EnvError):
            raise EnvError(f"{place}: {error}") from error.__cause__
        error.add_note(f"in {place}")

    def _notice(self, level: int, message: str) -> None:
        """Log a message once in the life of this environment."""
        if message not in self._noticed:
            self._noticed.add(message)
            logger.log(level, "%s, step %d: %s", self.label, self._steps, message)


def fold_seed(seed: int) -> int:
    """A seed of 0 to 2**63 - 1 as one of 0 to 2**32 - 1, which is all that many environments take.

    The upper half is folded onto the lower by exclusive or, so seeds below 2**32 stay as they are.
    """
    return (seed ^ (seed >> 32)) & 0xFFFFFFFF


def episode_limit(env: Any) -> int | None:
    """Steps after which an environment cuts an episode, where it has an attribute that says so."""
    for owner in (env, getattr(env, "unwrapped", None)):
        for name in EPISODE_LIMIT_NAMES:
            limit = getattr(owner, name, None)
            if isinstance(limit, (int, np.integer)) and limit > 0:
                return int(limit)
    return None
