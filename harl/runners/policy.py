"""A trained team for use in a script of one's own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from harl.algorithms.team import Acting, TeamMemory
from harl.config import Config, ConfigError, load_yaml
from harl.envs.api import EnvError, FloatArray, Layout
from harl.envs.parallel_codec import ObservationCodec
from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.run_folder import RunFolder
from harl.registry import build_team, make_envs
from harl.runners.evaluation import ActionClipper

NO_MASK = "{} was trained with action masks: give available_actions too, 1 = allowed"


class Policy:
    """The policies of all agents of a run, with the weights of one of its checkpoints.

    Attributes:
        config: the run's config.
        layout: agents and spaces.
        env_steps: environment steps that the checkpoint was trained for.
    """

    def __init__(self, config: Config, layout: Layout, team: Acting, env_steps: int) -> None:
        self.config, self.layout, self.team, self.env_steps = config, layout, team, env_steps
        self._clip = ActionClipper(layout)
        self._generator = torch.Generator(team.device)
        self._generator.seed()
        self._memory: TeamMemory | None = None

    def reset(self, ended: NDArray[np.bool_] | None = None) -> None:
        """Start new episodes: recurrent policies forget what they saw; feed-forward ones have nothing to forget.

        Args:
            ended: (N,) where only some of the N environments that are acted in start a new one; None for all.
        """
        if ended is None:
            self._memory = None
        elif self._memory is not None:
            self._memory.note_ends(np.asarray(ended, np.bool_))

    def seed(self, seed: int) -> None:
        """Make the samples of `act(…, deterministic=False)` repeatable."""
        self._generator.manual_seed(seed)

    def act(
        self,
        obs: Mapping[str, Any] | NDArray[Any],
        available_actions: Mapping[str, Any] | NDArray[Any] | None = None,
        deterministic: bool = True,
        hint: Any = None,
    ) -> dict[str, Any] | FloatArray:
        """Actions of the team, executable as they are (clipped to each agent's bounds).

        Recurrent policies remember what they saw since the last `reset`: call it where an episode starts.

        Args:
            obs: {agent: its own observation} as a PettingZoo environment gives it, for the agents that are in the
                episode, or an array (N, A, obs_dim) or (A, obs_dim); images in an array are (…, C, H, W).
            available_actions: masks in the same form, 1 = allowed; needed where the team was trained with masks and
                the observations do not hold them as `action_mask`.
            deterministic: the mode of each policy in place of a sample.
            hint: what people said beside their actions; policies that learned without it ignore it.

        Returns:
            {agent: action} in the form of the agent's action space for a dict, else a float32 array (N, A, action_dim)
            or (A, action_dim), discrete choices as their index.

        Raises:
            ValueError: an agent is unknown, a mask is missing, a number is NaN or infinite, a shape is not the one that
                was trained, or the number of environments N changed without a `reset` between.
        """
        if isinstance(obs, Mapping):
            return self._act_by_agent(obs, available_actions, deterministic)
        array = np.asarray(obs, np.float32)
        expected = (self.layout.num_agents, *self.layout.obs_shape)
        if array.shape[-len(expected) :] != expected or array.ndim > len(expected) + 1:
            raise ValueError(f"obs has the shape {array.shape}; expected {expected} or (N, *{expected})")
        single = array.ndim == len(expected)
        masks = self._array_masks(available_actions, array.shape[: 1 - len(expected)])
        actions = self._actions(
            array[None] if single else array, masks[None] if single and masks is not None else masks, deterministic
        )
        result: FloatArray = actions[0] if single else actions
        return result

    def _array_masks(self, masks: Any, head: tuple[int, ...]) -> FloatArray | None:
        if masks is None:
            if self.layout.has_masks:
                raise ValueError(NO_MASK.format("this team"))
            return None
        array = np.asarray(masks, np.float32)
        expected = (*head, self.layout.action_number)
        if array.shape != expected:
            raise ValueError(f"available_actions has the shape {array.shape}; expected {expected}")
        return array

    def _actions(self, obs: FloatArray, masks: FloatArray | None, deterministic: bool) -> FloatArray:
        if not np.isfinite(obs).all():
            raise ValueError("an observation is NaN or infinite: no action can be chosen for it")
        device = self.team.device
        rows = torch.from_numpy(np.ascontiguousarray(obs)).to(device)
        mask_rows = None if masks is None else torch.from_numpy(np.ascontiguousarray(masks)).to(device)
        if self._memory is None:
            self._memory = self.team.new_memory(len(rows))
        memory = self._memory
        if memory is not None and len(memory.before) != len(rows):
            raise ValueError(
                f"the policies remember {len(memory.before)} environments, and obs has {len(rows)}; call reset() first"
            )
        actions, _ = self.team.act(rows, mask_rows, deterministic, self._generator, memory=memory)
        if memory is not None:
            memory.masks.fill_(1.0)
        return self._clip(actions)

    def _act_by_agent(self, obs: Mapping[str, Any], masks: Any, deterministic: bool) -> dict[str, Any]:
        layout = self.layout
        strangers = [agent for agent in obs if agent not in layout.agents]
        if strangers:
            raise ValueError(f"unknown agents {strangers}; this team has {', '.join(layout.agents)}")
        array = np.zeros((1, layout.num_agents, *layout.obs_shape), np.float32)
        mask_array = np.ones((1, layout.num_agents, layout.action_number), np.float32)
        masked = masks is not None or layout.has_masks
        for i, agent in enumerate(layout.agents):
            if agent not in obs:
                continue
            self._write(i, obs[agent], array[0, i])
            if masked and layout.action_numbers[i]:
                mask_array[0, i, : layout.action_numbers[i]] = self._own_mask(i, obs[agent], masks)
        actions: FloatArray = self._actions(array, mask_array if masked else None, deterministic)[0]
        return {agent: _native(actions[layout.agents.index(agent)], self._space(agent)) for agent in obs}

    def _write(self, i: int, observation: Any, out: FloatArray) -> None:
        """Put what agent i's environment shows it into its row."""
        layout = self.layout
        agent, space = layout.agents[i], layout.observation_spaces[i]
        if len(layout.obs_shape) > 1:
            image = observation["observation"] if isinstance(observation, Mapping) else observation
            try:
                ObservationCodec(agent, space).write(image, out)
            except EnvError as error:
                raise ValueError(str(error)) from None
            return
        own = _vector(observation, space)
        if own.size != layout.obs_dims[i]:
            raise ValueError(f"the observation of {agent} has {own.size} numbers; expected {layout.obs_dims[i]}")
        out[: own.size] = own

    def _own_mask(self, index: int, observation: Any, masks: Mapping[str, Any] | None) -> FloatArray:
        agent, width = self.layout.agents[index], self.layout.action_numbers[index]
        source = observation if isinstance(observation, Mapping) else {}
        given = source.get("action_mask") if masks is None else masks.get(agent)
        if given is None:
            raise ValueError(NO_MASK.format(agent))
        mask = np.asarray(given, np.float32).ravel()
        if mask.size != width:
            raise ValueError(f"the mask of {agent} has {mask.size} numbers; expected {width}")
        return mask

    def _space(self, agent: str) -> spaces.Space[Any]:
        return self.layout.action_spaces[self.layout.agents.index(agent)]


def _vector(observation: Any, space: spaces.Space[Any]) -> FloatArray:
    if isinstance(observation, Mapping):
        observation = observation["observation"]
    if isinstance(space, spaces.Discrete):
        one_hot: FloatArray = np.eye(int(space.n), dtype=np.float32)[int(observation) - int(space.start)]
        return one_hot
    return np.asarray(observation, np.float32).ravel()


def _native(action: FloatArray, space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(action[0]) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return action[: len(space.nvec)].astype(space.dtype) + space.start
    return action[: math.prod(space.shape or ())].astype(space.dtype)


def find_checkpoint(path: str | Path, which: str | int = "best") -> tuple[RunFolder, int | Literal["latest", "best"]]:
    """The run that a path lies in, and the checkpoint that is meant.

    A path to a checkpoint means that one. "best" means the newest where no evaluation has made a best one.

    Raises:
        RunFolderError, ConfigError: what was looked for is not there.
    """
    folder = RunFolder.open(path)
    inside = Path(path).expanduser().resolve().relative_to(folder.path).parts
    if len(inside) > 1 and inside[0] == "checkpoints" and inside[1].isdecimal():
        return folder, int(inside[1])
    if isinstance(which, int) or which.isdecimal():
        return folder, int(which)
    if which not in ("best", "latest"):
        raise ConfigError([f"checkpoint {which!r} is unknown; allowed: best, latest, or a number of steps"])
    has_best = CheckpointStore(folder.checkpoints, keep_last=1).best is not None
    return folder, "best" if which == "best" and has_best else "latest"


def load_policy(run: str | Path, checkpoint: str | int = "best", device: str = "cpu") -> Policy:
    """The team of a run folder.

    Args:
        run: the run folder.
        checkpoint: "best" (by evaluation; the newest where none was made), "latest", or its environment steps.
        device: where the networks shall live, as torch names it.

    Raises:
        RunFolderError, CheckpointError: what was looked for is not there, or damaged.
    """
    folder, which = find_checkpoint(run, checkpoint)
    config = load_yaml(folder.config)
    env_steps, state = CheckpointStore(folder.checkpoints, keep_last=1).load(which, keys=("learners",))
    with contextlib.closing(make_envs(config.env, 1)) as envs:
        layout = envs.layout
    where = torch.device(device)
    team = build_team(config.algo, layout, where, torch.Generator(where))
    for network, actor in zip(team.networks, state["learners"]["actors"].values(), strict=True):
        network.load_state_dict(actor["policy"])
    team.refresh()
    return Policy(config, layout, team, env_steps)
