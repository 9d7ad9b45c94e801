"""Random episodes of one `ParallelEnv` in which every promise is checked and every breach is written down.

The adapter that training uses stops at the first breach; this play goes on as far as it can, so that all are found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.envs import parallel_contract as contract
from harl.envs.api import EnvError, FloatArray
from harl.envs.parallel_adapter import EPISODE_LIMIT_NAMES, episode_limit
from harl.envs.parallel_codec import ActionCodec, ObservationCodec, common_obs_shape, split_observation
from harl.envs.parallel_state import StatePlan, plan_state

MAX_EPISODE_STEPS = 2000
"""An episode that lasts longer is left; the checker says so."""


@dataclass
class Findings:
    """What a check has found, in plain words; every message once, with the place where it was met first."""

    lines: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Message → (kind, place); kind is RIGHT, NOTE or WRONG."""
    summary: list[str] = field(default_factory=list)

    RIGHT, NOTE, WRONG = "right", "note", "WRONG"

    def right(self, message: str) -> None:
        """Something is as it should be."""
        self.lines.setdefault(message, (self.RIGHT, ""))

    def note(self, message: str, place: str = "") -> None:
        """Something is allowed, but may be meant otherwise."""
        self.lines.setdefault(message, (self.NOTE, place))

    def wrong(self, message: str, place: str = "") -> None:
        """Something breaks the contract."""
        self.lines.setdefault(message, (self.WRONG, place))

    @property
    def problems(self) -> list[str]:
        """All messages about what is wrong."""
        return [message for message, (kind, _) in self.lines.items() if kind == self.WRONG]

    @contextlib.contextmanager
    def collecting(self, place: str) -> Iterator[None]:
        """Turn whatever is raised inside into a finding."""
        try:
            yield
        except EnvError as error:
            self.wrong(str(error), place)
        except Exception as error:
            self.wrong(f"the environment raised {type(error).__name__}: {error}", place)


def random_row(codec: ActionCodec, mask: NDArray[Any] | None, width: int, rng: np.random.Generator) -> FloatArray:
    """A random legal action as a row (width,) of the action array; `mask` is the agent's own, None: all allowed."""
    row = np.zeros(width, np.float32)
    space = codec.space
    if isinstance(space, spaces.Box):
        free = rng.normal(size=codec.width)
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        drawn = np.where(bounded, 0.0, free)
        drawn[bounded] = rng.uniform(space.low[bounded], space.high[bounded])
        row[: codec.width] = np.clip(drawn, space.low, space.high)
        return row
    for column, (first, last) in enumerate(codec.parts):
        allowed = np.arange(last - first) if mask is None else np.flatnonzero(mask[first:last])
        row[column] = rng.choice(allowed) if allowed.size else 0
    return row


class Play:
    """Plays `env` and adds to `findings`; the figures for the summary are kept on the way."""

    def __init__(self, env: Any, findings: Findings, rng: np.random.Generator) -> None:
        self.env = env
        self.findings = findings
        self._rng = rng
        self._agents: list[Any] = []
        self._ids: frozenset[Any] = frozenset()
        self._obs: dict[Any, ObservationCodec] = {}
        self._actions: dict[Any, ActionCodec] = {}
        self._state: StatePlan | None = None
        self._masked: set[Any] = set()
        self._lengths: list[int] = []
        self._endings: list[str] = []
        self._returns: list[dict[Any, float]] = []
        self._rewards_differ = False
        self._place = "start"

    def read_spaces(self) -> bool:
        """Check agents and spaces; False if play is impossible without them."""
        with self.findings.collecting("possible_agents"):
            self._agents = contract.possible_agents(self.env)
        self._ids = frozenset(self._agents)
        for agent in self._agents:
            with self.findings.collecting("observation_space"):
                self._obs[agent] = ObservationCodec(agent, self.env.observation_space(agent))
            with self.findings.collecting("action_space"):
                self._actions[agent] = ActionCodec(agent, self.env.action_space(agent))
                if self.env.action_space(agent) is not self.env.action_space(agent):
                    self.findings.note(f"agent {agent!r}: action_space() makes a new space at every call; keep one")
        if not self._agents or len(self._obs) < len(self._agents) or len(self._actions) < len(self._agents):
            return False
        with self.findings.collecting("observation spaces"):
            common_obs_shape(list(self._obs.values()))
            self.findings.right(f"{len(self._agents)} agents, all spaces are supported")
        return not self.findings.problems

    def episodes(self, count: int, seed: int) -> None:
        """Play `count` episodes; only the first reset is seeded."""
        for episode in range(1, count + 1):
            if not self._episode(episode, seed if episode == 1 else None):
                return
        if not self.findings.problems:
            self.findings.right(f"{count} random episodes keep every promise of a ParallelEnv")

    def summarise(self) -> None:
        """Add spaces, lengths and returns to the summary of the findings, and advice on rewards."""
        add = self.findings.summary.append
        for agent in self._agents:
            mask = ", with an action mask" if agent in self._masked else ""
            if agent in self._obs and agent in self._actions:
                add(f"{agent}: observes {self._obs[agent].space}, acts in {self._actions[agent].space}{mask}")
        if self._state is not None:
            add(f"central state: {self._state.source}, shape {self._state.shape}")
        if not self._lengths:
            return
        limit = episode_limit(self.env)
        known = f"limit {limit}" if limit else f"no limit known (the environment has no {EPISODE_LIMIT_NAMES[0]})"
        add(f"episodes: {len(self._lengths)}, steps {min(self._lengths)} to {max(self._lengths)}, {known}")
        add(f"ends: {', '.join(self._endings)}")
        for agent in self._agents:
            returns = [episode[agent] for episode in self._returns]
            spread = f"from {min(returns):.4g} to {max(returns):.4g}"
            add(f"{agent}: return of random actions {np.mean(returns):.4g} ({spread})")
        if self._rewards_differ:
            add(
                "rewards differ between agents: env.reward=individual lets each learn from its own, "
                "shared_sum or shared_mean lets all learn from the team's"
            )
        elif len(self._agents) > 1:
            add("rewards are the same for all agents: env.reward=shared_mean keeps their size, shared_sum adds them up")

    def _episode(self, episode: int, seed: int | None) -> bool:
        """One episode; False if it could not be played to its end."""
        self._place = f"reset of episode {episode}"
        before = len(self.findings.problems)
        observations: dict[Any, Any] = {}
        infos: dict[Any, Any] = {}
        with self.findings.collecting(self._place):
            observations, infos = contract.unpack_reset(self.env.reset(seed=seed))
            self._check_containers(infos, observations, observations=observations)
        if len(self.findings.problems) > before:
            return False
        alive = self._listed()
        if not alive or not observations:
            self.findings.note("an episode is over right after reset; training resets again", self._place)
            return True
        if self._state is None:
            with self.findings.collecting(self._place):
                self._state = plan_state(self.env, self._agents, list(self._obs.values()), "EP")
        returns = dict.fromkeys(self._agents, 0.0)
        gone: set[Any] = set(self._ids) - set(alive)
        departed: set[Any] = set()
        masks = self._check_views(observations, infos, alive)
        for step in range(1, MAX_EPISODE_STEPS + 1):
            self._place = f"step {step} of episode {episode}"
            sent = {agent: self._choose(agent, masks, agent not in departed) for agent in self._listed()}
            before = len(self.findings.problems)
            result: Any = None
            with self.findings.collecting(self._place):
                result = contract.unpack_step(self.env.step(sent))
            if result is None:
                return False
            observations, rewards, terminations, truncations, infos = result
            with self.findings.collecting(self._place):
                self._check_containers(
                    infos,
                    observations,
                    observations=observations,
                    rewards=rewards,
                    terminations=terminations,
                    truncations=truncations,
                )
            if len(self.findings.problems) > before:
                return False
            self._add_rewards(alive, rewards, returns)
            listed = self._listed()
            ended = {a for a in alive if self._flag(terminations, a) or self._flag(truncations, a) or a not in listed}
            cut = any(self._flag(truncations, agent) for agent in alive)
            departed |= ended
            for agent in set(listed) & gone & departed:
                self.findings.note(f"agent {agent!r} is listed in env.agents again after it left", self._place)
            gone |= self._ids - set(listed)
            alive = [agent for agent in listed if agent not in departed]
            masks = self._check_views(observations, infos, alive)
            self._check_state()
            if not alive:
                self._lengths.append(step)
                self._endings.append("truncated" if cut else "terminated")
                self._returns.append(returns)
                return True
        self.findings.note(
            f"an episode was not over after {MAX_EPISODE_STEPS} steps; truncate it in the environment, as training "
            "counts and compares episodes",
            self._place,
        )
        return True

    def _check_containers(self, infos: Any, present: Any, **mappings: Any) -> None:
        """Every dict has agents as keys; each is looked at, whatever the others hold."""
        for what, mapping in mappings.items():
            with self.findings.collecting(self._place):
                contract.check_keys(what, mapping, self._ids)
        with self.findings.collecting(self._place):
            contract.check_infos(infos, self._ids, present)

    def _check_views(self, observations: dict[Any, Any], infos: dict[Any, Any], alive: list[Any]) -> dict[Any, Any]:
        """Observations and masks of all living agents; returns the masks."""
        masks = {}
        for agent in alive:
            if agent not in observations:
                self.findings.wrong(f"agent {agent!r} is in env.agents, but has no observation", self._place)
                continue
            with self.findings.collecting(self._place):
                observation, mask = split_observation(observations[agent], infos.get(agent))
                self._check_observation(agent, observation)
                if mask is not None and self._actions[agent].mask_width:
                    masks[agent] = self._check_mask(agent, mask)
                    self._masked.add(agent)
                elif agent in self._masked:
                    self.findings.wrong(f"agent {agent!r} gives an action mask only now and then", self._place)
        return masks

    def _check_observation(self, agent: Any, observation: Any) -> None:
        codec = self._obs[agent]
        row = np.zeros(codec.shape, np.float32)
        codec.write(observation, row)
        if not np.isfinite(row).all():
            self.findings.wrong(f"agent {agent!r}: its observation holds NaN or infinity", self._place)
        elif isinstance(codec.space, spaces.Box):
            array = np.asarray(observation)
            if (array < codec.space.low).any() or (array > codec.space.high).any():
                self.findings.note(
                    f"agent {agent!r}: an observation is outside of the bounds of its space", self._place
                )
            if array.dtype != codec.space.dtype:
                self.findings.note(
                    f"agent {agent!r}: observations are {array.dtype}, the space declares {codec.space.dtype} "
                    "(training casts to float32)"
                )

    def _check_mask(self, agent: Any, mask: Any) -> FloatArray:
        codec = self._actions[agent]
        row = np.zeros(codec.mask_width, np.float32)
        if not codec.write_mask(mask, row):
            self.findings.wrong(f"agent {agent!r} takes part, but its action mask allows no action", self._place)
        if not np.isin(row, (0.0, 1.0)).all():
            self.findings.wrong(f"agent {agent!r}: its action mask holds values other than 0 and 1", self._place)
        return row

    def _check_state(self) -> None:
        if self._state is not None:
            shape = common_obs_shape(list(self._obs.values()))
            joined = np.zeros((len(self._agents), *shape), np.float32)
            state = np.zeros(self._state.shape, np.float32)
            with self.findings.collecting(self._place):
                self._state.write(self.env, self._agents, joined, state)
                if not np.isfinite(state).all():
                    self.findings.wrong("env.state() holds NaN or infinity", self._place)

    def _add_rewards(self, alive: list[Any], rewards: dict[Any, Any], returns: dict[Any, float]) -> None:
        values = []
        for agent in self._agents:
            with self.findings.collecting(self._place):
                value = contract.reward_value(agent, rewards[agent]) if agent in rewards else None
                if agent not in alive:
                    if value:
                        self.findings.note(f"rewards of agent {agent!r} after it has left are ignored", self._place)
                elif value is None:
                    self.findings.wrong(f"step returned no reward for agent {agent!r}", self._place)
                elif not np.isfinite(value):
                    self.findings.wrong(f"agent {agent!r}: its reward is {value}", self._place)
                else:
                    returns[agent] += value
                    values.append(value)
        self._rewards_differ |= len(set(values)) > 1

    def _flag(self, flags: dict[Any, Any], agent: Any) -> bool:
        if agent not in flags:
            if agent in self._listed():
                self.findings.wrong(f"agent {agent!r} is in env.agents, but has no end flag", self._place)
            return False
        try:
            return contract.flag_value("its end flag", agent, flags)
        except EnvError as error:
            self.findings.wrong(str(error), self._place)
            return False

    def _listed(self) -> list[Any]:
        try:
            return contract.listed_agents(self.env, self._ids)
        except EnvError as error:
            self.findings.wrong(str(error), self._place)
            return []

    def _choose(self, agent: Any, masks: dict[Any, Any], takes_part: bool) -> Any:
        codec = self._actions[agent]
        if not takes_part:
            return codec.neutral()
        return codec.decode(random_row(codec, masks.get(agent), codec.width, self._rng))
