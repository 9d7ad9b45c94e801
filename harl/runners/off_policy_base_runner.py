"""Acting, remembering, and learning from what is remembered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from harl.algorithms.base import NonFiniteError, Reports
from harl.algorithms.off_policy_team import OffPolicyTeam
from harl.buffers.replay import ReplayBatch, ReplayBuffer
from harl.config import ConfigError, OffPolicyAlgoConfig, OffPolicyTrainConfig
from harl.envs.api import EnvStep, FloatArray
from harl.experiment.episodes import EnvMetrics, EpisodeTracker
from harl.experiment.seeding import Purpose
from harl.registry import ALGORITHMS, off_policy_parts
from harl.runners.announce import announce_team
from harl.runners.checks import check_finite, large_observations
from harl.runners.off_policy_people import OffPolicyPeople
from harl.runners.runner import Runner
from harl.runners.running_means import RunningMeans
from harl.runners.seen import Seen


class OffPolicyBaseRunner(Runner):
    """The loop of off-policy algorithms; subclasses say in which order the agents are improved (`train`)."""

    team: OffPolicyTeam
    family = "off_policy"
    people: OffPolicyPeople | None = None

    def build_learners(self) -> None:
        """Make the team, its critic and the replay buffer."""
        train, algo = self.algo_args.train, self.algo_args.algo
        assert isinstance(train, OffPolicyTrainConfig)
        assert isinstance(algo, OffPolicyAlgoConfig)
        self.train_config, self.algo = train, algo
        self.exploration = self._generator(Purpose.EXPLORATION, self.device)
        self.replay_order = self._generator(Purpose.REPLAY)
        self.agent_order = self._generator(Purpose.AGENT_ORDER)
        self.random_actions = self.seeds.numpy_generator(Purpose.WARMUP)
        actor, critic = off_policy_parts(ALGORITHMS[algo.name])
        self.team = OffPolicyTeam(self.layout, self.algo_args, actor, self.device, self.exploration)
        self.critic = critic(self.layout, self.algo_args.model, algo, self.device)
        try:
            self.buffer = self.new_buffer(algo.buffer_size, train.n_rollout_threads, self.learning is not None)
        except ValueError as error:
            raise ConfigError([f"algo.buffer_size={algo.buffer_size}: {error}"]) from None
        self.tracker = EpisodeTracker(train.n_rollout_threads, self.layout.agents)
        self.env_metrics = EnvMetrics()
        self.means = RunningMeans()
        self.reports = Reports()
        self.train_return: float | None = None
        self.vector_steps = 0
        """Vector steps since the warm-up."""
        self.total_it = 0
        """Updates of the critic so far."""
        self.enough = 1
        """Transitions that the buffer must hold before learning goes on."""
        self.now: Seen | None = None
        if self.learning is not None:
            self.people = OffPolicyPeople(self, self.learning)
        self.driving = self.people if self.bridge is not None else None
        """People who may take part in every step."""

    def new_buffer(self, capacity: int, num_envs: int, people: bool = False) -> ReplayBuffer:
        """A replay buffer with the run's settings.

        Raises:
            ValueError: see `ReplayBuffer`.
        """
        algo, reward = self.algo, self.env_args.reward
        return ReplayBuffer(
            self.layout,
            capacity,
            num_envs,
            algo.n_step,
            algo.gamma,
            reward,
            algo.time_limit,
            self.replay_order,
            self.device,
            people,
        )

    @property
    def total_steps(self) -> int:
        """The budget, rounded up to whole vector steps."""
        threads = self.train_config.n_rollout_threads
        return -(-self.train_config.num_env_steps // threads) * threads

    def learn(self) -> None:
        """Train; see `run`."""
        self.announce()
        self.start()
        self.join_people()
        self.evaluate_when_due()
        self.warmup()
        while not (self.finished or self.stop_requested):
            self.evaluate_when_due()
            self.save_when_due()
            with self.means.timed("collect"):
                self.step(self.get_actions(self.seen.obs, self.seen.available_actions, add_random=True))
                self.vector_steps += 1
            if self.vector_steps % self.train_config.train_interval == 0 and len(self.buffer) >= self.enough:
                self.learn_for_a_while()
            self.log()
        if self.finished:
            self.evaluate_when_due(final=True)

    def announce(self) -> None:
        """Say what is about to happen."""
        announce_team(self)
        train, n = self.train_config, self.train_config.n_rollout_threads
        self.logger.message(
            f"{train.warmup_steps:,} random steps, then {train.update_per_train:g} updates of {self.algo.batch_size} "
            f"transitions for each step of {n} environments, made every {train.train_interval} such steps, on "
            f"{self.device}; threads {self.threads.acting} acting, {self.threads.updating} updating; "
            f"replay buffer of {self.algo.buffer_size:,} transitions, {self.buffer.nbytes / 2**20:,.0f} MiB when full"
        )
        learning = -(-train.num_env_steps // n) - -(-train.warmup_steps // n)
        if self.updates_until(learning - learning % train.train_interval) < 1 and not self.finished:
            self.logger.message(
                f"nothing will be learned: train.num_env_steps={train.num_env_steps} is over before the first update "
                f"(train.warmup_steps={train.warmup_steps}, train.train_interval={train.train_interval}, "
                f"train.update_per_train={train.update_per_train:g})"
            )

    def start(self) -> None:
        """Start the environments of a new run."""
        if self.now is None:
            self._start_envs(self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.train_config.n_rollout_threads))

    def _start_envs(self, seeds: list[int]) -> None:
        first, self.reset_seeds = self.envs.reset(seeds), seeds
        check_finite(first, self.layout, self.env_steps)
        self.now = Seen.of(first)

    def shown(self) -> EnvStep:
        """What the agents see now, with nothing earned and nothing ended."""
        seen = self.seen
        no = np.zeros(seen.active.shape[:2], np.bool_)
        return EnvStep(seen.obs, seen.share_obs, seen.available_actions, seen.active, seen.active * 0, no, no, no[:, 0])

    @property
    def seen(self) -> Seen:
        """What the agents see now."""
        assert self.now is not None, "the environments have not been started"
        return self.now

    def warmup(self) -> None:
        """Take random legal actions until `train.warmup_steps` environment steps are in the buffer."""
        while self.env_steps < self.train_config.warmup_steps and not (self.finished or self.stop_requested):
            with self.means.timed("collect"):
                self.step(self.sample_actions(self.seen.available_actions))
            self.log(phase="warm-up")

    def sample_actions(self, available_actions: FloatArray | None = None) -> FloatArray:
        """Random actions (N, A, action_dim), even among the legal ones (N, A, action_number), even within each Box.

        Dimensions of a Box without bounds are drawn from a standard normal; those with one bound lie beyond it by the
        size of such a draw.
        """
        n, draw = self.train_config.n_rollout_threads, self.random_actions
        actions = np.zeros((n, self.layout.num_agents, self.layout.action_dim), np.float32)
        for i, space in enumerate(self.layout.action_spaces):
            if isinstance(space, spaces.Box):
                actions[:, i, : space.shape[0]] = _random_points(space, n, draw)
                continue
            sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(k) for k in space.nvec]  # type: ignore[attr-defined]
            start = 0
            for column, size in enumerate(sizes):
                ranks = draw.random((n, size))
                if available_actions is not None:
                    ranks[available_actions[:, i, start : start + size] == 0] = -1.0
                actions[:, i, column] = ranks.argmax(-1)
                start += size
        return actions

    def get_actions(
        self, obs: FloatArray, available_actions: FloatArray | None = None, add_random: bool = True
    ) -> FloatArray:
        """Actions (N, A, action_dim) of the team for observations (N, A, obs_dim).

        Args:
            obs: what each agent sees.
            available_actions: (N, A, action_number) or None where everything is allowed.
            add_random: explore; otherwise the best action that each policy knows.
        """
        masks = None if available_actions is None else torch.from_numpy(available_actions).to(self.device)
        actions, _ = self.team.act(torch.from_numpy(obs).to(self.device), masks, deterministic=not add_random)
        return cast(FloatArray, actions.cpu().numpy())

    def step(self, actions: FloatArray) -> None:
        """Take a step in every environment and remember it."""
        before, executed = self.seen, actions
        if self.driving is not None:
            executed = self.driving.drive(before, actions)
        outcome = self.envs.step(executed)
        if self.driving is not None:
            outcome = self.driving.take_marks(outcome)
        check_finite(outcome, self.layout, self.env_steps)
        self.insert(before, executed, outcome)
        self.now = Seen.of(outcome)
        self.env_steps += self.train_config.n_rollout_threads

    def insert(self, before: Seen, actions: FloatArray, outcome: EnvStep) -> None:
        """Write one vector step into the buffer and count it."""
        self.tracker.add(outcome.rewards, outcome.ended, outcome.active)
        if outcome.metrics:
            self.env_metrics.add(outcome.metrics)
        if self.driving is None:
            self.buffer.insert(before, actions, outcome)
        else:
            self.driving.remember(before, actions, outcome)
        self.means.count_steps(self.train_config.n_rollout_threads)

    def learn_for_a_while(self) -> None:
        """A bout of updates: `train_interval` · `update_per_train` of them, what is not whole left to a later one.

        Raises:
            NonFiniteError: a loss or a gradient became NaN or infinite; names the learner, the number and the step.
        """
        self.prep_training()
        self.decay_learning_rates()
        before = self.updates_until(self.vector_steps - self.train_config.train_interval)
        if self.people is not None:
            self.people.report()
        with self.means.timed("update"):
            for _ in range(self.updates_until(self.vector_steps) - before):
                self.train()
            try:
                self.means.add(self.reports.drain())
            except NonFiniteError as error:
                raise NonFiniteError(
                    f"{error}, after {self.env_steps} environment steps; the checkpoints are from before it"
                    f"{large_observations(self.seen.obs)}"
                ) from None
        self.threads.for_acting()

    def updates_until(self, vector_steps: int) -> int:
        """Updates that so many vector steps after the warm-up are worth."""
        return round(vector_steps * self.train_config.update_per_train)

    def report(self, learner: int | Literal["critic"], values: Mapping[str, Tensor]) -> None:
        """Note scalars of an agent, by its index, or of the critic, for the log."""
        if learner == "critic":
            self.reports.add("critic", "critic", values)
        else:
            owner = f"actor of {self.team.actors[learner].name}"
            self.reports.add(owner, f"agent/{self.layout.agents[learner]}", values)

    def decay_learning_rates(self) -> None:
        """With `train.use_linear_lr_decay`, lr · (1 − steps taken / budget)."""
        if self.train_config.use_linear_lr_decay:
            fraction = max(0.0, 1.0 - self.env_steps / self.train_config.num_env_steps)
            for optimizer in (*(actor.optimizer for actor in self.team.own), self.critic.optimizer):
                optimizer.set_lr_fraction(fraction)

    @abstractmethod
    def train(self) -> None:
        """One update of the critic, and of the actors when it is their turn."""

    def train_critic(self) -> ReplayBatch:
        """Sample a batch and take one step of the critic; returns the batch."""
        self.total_it += 1
        size = self.algo.batch_size
        batch = self.buffer.sample(size) if self.people is None else self.people.sample(size)
        entries: list[Tensor] = []
        log_probs: list[Tensor | None] = []
        for i, actor in enumerate(self.team.actors):
            masks = actor.own_mask(batch.next_available_actions, i)
            entry, log_prob = actor.following(actor.own(batch.next_obs, i), masks)
            entries.append(entry)
            log_probs.append(log_prob)
        self.report("critic", self.critic.train(batch, entries, log_probs))
        return batch

    @property
    def actors_turn(self) -> bool:
        """Whether the actors and the slow networks move in this update."""
        return self.total_it % self.algo.policy_freq == 0

    def follow(self) -> None:
        """Move all slow networks, each of them once."""
        for actor in self.team.own:
            actor.follow()
        self.critic.follow()

    def log(self, phase: str = "collect") -> None:
        """Write the means since the last line when it is time."""
        if not (self.due["log"].reached(self.env_steps) or self.finished):
            return
        self.due["log"].advance(self.env_steps)
        episodes = self.tracker.drain()
        self.train_return = episodes.get("train/return_sum", self.train_return)
        self.logger.progress(self.env_steps, phase, self.means.steps_per_second, self.train_return)
        told = {**episodes, **self.env_metrics.drain(), **self.means.drain()}
        if self.people is not None:
            told.update(self.people.counts.drain())
        self.logger.scalars(self.env_steps, told)

    # Checkpoints.

    def learner_state(self) -> dict[str, Any]:
        """Every actor by the name of its agent, and the critic."""
        actors = {actor.name: actor.get_state() for actor in self.team.own}
        return {"actors": actors, "critic": self.critic.get_state()}

    def load_learners(self, state: Mapping[str, Any]) -> None:
        """Take over actors and critic with their slow copies, optimisers and temperatures."""
        for actor in self.team.own:
            actor.set_state(state["actors"][actor.name])
        self.critic.set_state(state["critic"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over the weights of actors and critic, slow ones and normaliser included; temperatures start anew."""
        for actor in self.team.own:
            actor.set_state(_weights_alone(state["actors"][actor.name]))
        self.critic.set_state(_weights_alone(state["critic"]))

    def progress_state(self) -> dict[str, Any]:
        """Environments, what the agents see, statistics, generators, counters, and the replay where asked."""
        return {
            "envs": self.envs.get_state() if self.envs.can_save_state else None,
            "now": None if self.now is None else self.now.get_state(),
            "replay": self.buffer.get_state() if self.algo.save_replay else None,
            "vector_steps": self.vector_steps,
            "total_it": self.total_it,
            "tracker": self.tracker.get_state(),
            "means": self.means.get_state(),
            "env_metrics": self.env_metrics.get_state(),
            "exploration": self.exploration.get_state(),
            "replay_order": self.replay_order.get_state(),
            "agent_order": self.agent_order.get_state(),
            "random_actions": self.random_actions.bit_generator.state,
            **({} if self.people is None else {"people": self.people.get_state()}),
        }

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; what could not be saved is named in the log."""
        self.vector_steps, self.total_it = state["vector_steps"], state["total_it"]
        self.tracker.set_state(state["tracker"])
        self.means.set_state(state["means"])
        self.env_metrics.set_state(state["env_metrics"])
        self.exploration.set_state(state["exploration"])
        self.replay_order.set_state(state["replay_order"])
        self.agent_order.set_state(state["agent_order"])
        self.random_actions.bit_generator.state = state["random_actions"]
        if self.people is not None and "people" in state:
            self.people.set_state(state["people"])
        if state["replay"] is not None:
            self.buffer.set_state(state["replay"])
        elif self.env_steps:
            room = self.buffer.slots * self.buffer.num_envs
            self.enough = min(max(self.algo.batch_size, self.train_config.warmup_steps), room)
            self.notices.append(
                "the checkpoint has no replay buffer (algo.save_replay=false): it is filled again by the policy, and "
                f"learning goes on when it holds {self.enough:,} transitions"
            )
        if state["envs"] is not None and state["now"] is not None:
            self.envs.set_state(state["envs"])
            self.now = Seen(**state["now"])
        elif state["now"] is not None:
            self.notices.append(f"{self.envs.name} cannot save its state: the environments were reset")
            self.tracker.reset()
            self.buffer.break_episodes()
            if self.people is not None:
                self.people.restart()
            self._start_envs(
                self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.train_config.n_rollout_threads, self.env_steps)
            )


def _random_points(space: spaces.Box, n: int, draw: np.random.Generator) -> NDArray[Any]:
    """(n, k) points of a Box."""
    has_low, has_high = np.isfinite(space.low), np.isfinite(space.high)
    bounded, shape = has_low & has_high, (n, *space.shape)
    even = draw.uniform(np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0), shape)
    normal = draw.standard_normal(shape)
    above, below = space.low + np.abs(normal), space.high - np.abs(normal)
    return np.where(bounded, even, np.where(has_low, above, np.where(has_high, below, normal)))


def _weights_alone(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in state.items() if name not in ("optimizer", "temperature")}
