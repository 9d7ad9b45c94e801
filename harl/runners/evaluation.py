"""Episodes played by a team as it is, without learning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harl.algorithms.team import Acting
from harl.envs.api import EnvStep, FloatArray, Layout, VectorEnv
from harl.experiment.seeding import LARGEST_SEED, SeedStreams, global_rng_state, seed_everything, set_global_rng_state
from harl.runners.audience import Audience
from harl.runners.checks import check_finite


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    env: int
    """Index of the environment it was played in."""
    index: int
    """How many episodes that environment had played before it, since it was seeded."""
    seed: int
    """Seed of the environment."""
    returns: dict[str, float]
    """Undiscounted sum of the raw rewards of each agent."""
    length: int
    """Steps."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What each step was like, where it was asked for."""
    human_steps: int = 0
    """Steps in which a person drove an agent."""

    @property
    def return_sum(self) -> float:
        """Sum over agents."""
        return sum(self.returns.values())

    @property
    def return_mean(self) -> float:
        """Mean over agents."""
        return self.return_sum / len(self.returns)

    def record(self) -> dict[str, Any]:
        """Plain numbers for a log."""
        people = {"human_steps": self.human_steps} if self.human_steps else {}
        return {
            "episode": self.index,
            "env": self.env,
            "seed": self.seed,
            "returns": self.returns,
            "return_sum": self.return_sum,
            "return_mean": self.return_mean,
            "length": self.length,
            **people,
        }


class ActionClipper:
    """Turns a policy's samples into actions that the environment may be given."""

    def __init__(self, layout: Layout) -> None:
        self.low, self.high = layout.action_bounds()
        self.bounded = bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def __call__(self, actions: torch.Tensor) -> FloatArray:
        """(N, A, action_dim) samples, clipped to each agent's own bounds where it has any."""
        return self.clipped(actions.cpu().numpy())

    def clipped(self, actions: FloatArray) -> FloatArray:
        """The same for an array."""
        return np.clip(actions, self.low, self.high) if self.bounded else actions


@contextlib.contextmanager
def global_generators_kept() -> Iterator[None]:
    """Whatever the block draws from the global generators, they stand afterwards where they stood before."""
    before = global_rng_state()
    try:
        yield
    finally:
        set_global_rng_state(before)


def play(
    team: Acting,
    envs: VectorEnv,
    seeds: list[int],
    episodes: int,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    picture: Callable[[int, int], None] | None = None,
    keep_steps: bool = False,
    stop: Callable[[], bool] | None = None,
    audience: Audience | None = None,
) -> list[Episode] | None:
    """Play an equal quota of episodes in each environment, so that short episodes are not preferred.

    The global generators are seeded anew, see `global_generators_kept`.

    Args:
        team: who acts; its weights must be fresh (`Team.refresh`).
        envs: where; reset first with `seeds`, one for each environment.
        episodes: how many in all, a multiple of the number of environments.
        deterministic: the mode of each policy in place of a sample from `generator`.
        picture: called before each step with the number of environment 0's episode, and how many were discarded in
            its place.
        keep_steps: keep the rewards, actions and metrics of each step with the episode.
        stop: asked before each step; when it says yes, None is returned.
        audience: people who watch and may drive; nothing is learned from them, and for each episode that they discard
            another one is played, at once where the environment can be restarted.

    Returns:
        The episodes, ordered by index and then by environment.
    """
    quota, remainder = divmod(episodes, envs.num_envs)
    if remainder or quota < 1:
        raise ValueError(f"{episodes} episodes cannot be shared equally by {envs.num_envs} environments")
    clip, layout = ActionClipper(envs.layout), envs.layout
    # Environments that draw from the global generators play the same episodes again too.
    seed_everything(SeedStreams(seeds[0] & LARGEST_SEED))
    step, taken = envs.reset(seeds), 0
    if audience is not None:
        audience.join(step)
    memory = team.new_memory(envs.num_envs)
    returns = np.zeros((envs.num_envs, layout.num_agents))
    lengths = np.zeros(envs.num_envs, dtype=np.int64)
    played = np.zeros(envs.num_envs, dtype=np.int64)
    attempts = np.zeros(envs.num_envs, dtype=np.int64)
    details: list[list[dict[str, Any]]] = [[] for _ in range(envs.num_envs)]
    finished: list[Episode] = []
    while played.min() < quota:
        if stop is not None and stop():
            return None
        if picture is not None and played[0] < quota:
            picture(int(played[0]), int(attempts[0]))
        obs = torch.from_numpy(step.obs).to(team.device)
        masks = None if step.available_actions is None else torch.from_numpy(step.available_actions).to(team.device)
        actions = clip(team.act(obs, masks, deterministic, generator, memory=memory)[0])
        if audience is not None:
            actions = clip.clipped(audience.drive(step, actions))
        step = envs.step(actions)
        if audience is not None:
            step = audience.take_marks(envs, step)
        if memory is not None:
            memory.note_ends(step.ended)
        check_finite(step, layout, taken, "steps of an evaluation")
        taken += 1
        returns += step.rewards[..., 0]
        lengths += 1
        if keep_steps:
            _note_steps(details, played < quota, step, actions, lengths)
        if audience is not None:
            audience.show(step)
        for n in np.flatnonzero(step.ended):
            human_steps, discarded = (0, False) if audience is None else audience.end(int(n))
            if played[n] < quota and not discarded:
                per_agent = dict(zip(layout.agents, returns[n].tolist(), strict=True))
                finished.append(
                    Episode(int(n), int(played[n]), seeds[n], per_agent, int(lengths[n]), details[n], human_steps)
                )
            played[n] += not discarded
            attempts[n] = attempts[n] + 1 if discarded else 0
            returns[n], lengths[n], details[n] = 0.0, 0, []
    return sorted(finished, key=lambda episode: (episode.index, episode.env))


def _note_steps(
    details: list[list[dict[str, Any]]],
    wanted: NDArray[np.bool_],
    step: EnvStep,
    actions: FloatArray,
    lengths: NDArray[np.int64],
) -> None:
    for n in np.flatnonzero(wanted):
        metrics = {name: float(values[n]) for name, values in step.metrics.items() if np.isfinite(values[n])}
        details[n].append(
            {
                "step": int(lengths[n]),
                "rewards": step.rewards[n, :, 0].tolist(),
                "actions": actions[n].tolist(),
                **metrics,
            }
        )


def step_metrics(episodes: Sequence[Episode], layout: Layout) -> dict[str, list[dict[str, Any]]]:
    """What each step was like for each agent: env, episode, step, reward, action columns, the environment's numbers.

    Args:
        episodes: as `play` gives them with `keep_steps`.
        layout: whose agents they are.
    """
    metrics: dict[str, list[dict[str, Any]]] = {agent: [] for agent in layout.agents}
    for episode in episodes:
        for step in episode.steps:
            shared = {name: value for name, value in step.items() if name not in ("rewards", "actions")}
            for i, agent in enumerate(layout.agents):
                own = {"env": episode.env, "episode": episode.index, "reward": step["rewards"][i]}
                columns = step["actions"][i][: layout.action_dims[i]]
                own.update({f"action_{k}": value for k, value in enumerate(columns)})
                metrics[agent].append({**own, **shared})
    return metrics
