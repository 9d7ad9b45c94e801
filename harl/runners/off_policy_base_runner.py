"""Acting, remembering, and learning from what is remembered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.base import Metrics
from harl.algorithms.off_policy_team import OffPolicyTeam
from harl.buffers.replay import ReplayBatch, ReplayBuffer
from harl.config import OffPolicyAlgoConfig, OffPolicyTrainConfig
from harl.envs.api import EnvStep, FloatArray
from harl.experiment.episodes import EnvMetrics, EpisodeTracker
from harl.experiment.seeding import Purpose
from harl.registry import ALGORITHMS, off_policy_parts
from harl.runners.announce import announce_team
from harl.runners.checks import check_finite
from harl.runners.runner import Runner
from harl.runners.running_means import RunningMeans
from harl.runners.seen import Seen


class OffPolicyBaseRunner(Runner):
    """The loop of off-policy algorithms; subclasses say in which order the agents are improved (`train`)."""

    team: OffPolicyTeam

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
        self.buffer = ReplayBuffer(
            self.layout,
            algo.buffer_size,
            train.n_rollout_threads,
            algo.n_step,
            algo.gamma,
            self.env_args.reward,
            algo.time_limit,
            self.replay_order,
            self.device,
        )
        self.tracker = EpisodeTracker(train.n_rollout_threads, self.layout.agents)
        self.env_metrics = EnvMetrics()
        self.means = RunningMeans()
        self.metrics = {name: Metrics() for name in ("critic", *self.layout.agents)}
        self.train_return: float | None = None
        self.vector_steps = 0
        """Vector steps since the warm-up."""
        self.total_it = 0
        """Updates of the critic so far."""
        self.enough = 1
        """Transitions that the buffer must hold before learning goes on."""
        self.now: Seen | None = None

    def learn(self) -> None:
        """Train; see `run`."""
        self.announce()
        self.start()
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
        train = self.train_config
        self.logger.message(
            f"{train.warmup_steps:,} random steps, then {train.update_per_train:g} updates of {self.algo.batch_size} "
            f"transitions for each of {train.n_rollout_threads} x 1 environment steps, every {train.train_interval} "
            f"vector steps, on {self.device}; threads {self.threads.acting} acting, {self.threads.updating} updating; "
            f"replay buffer of {self.algo.buffer_size:,} transitions, {self.buffer.nbytes / 2**20:,.0f} MiB when full"
        )

    def start(self) -> None:
        """Start the environments of a new run."""
        if self.now is None:
            self._start_envs(self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.train_config.n_rollout_threads))

    def _start_envs(self, seeds: list[int]) -> None:
        first = self.envs.reset(seeds)
        check_finite(first, self.layout, self.env_steps)
        self.now = Seen.of(first)

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

        Dimensions of a Box that have no bounds are drawn from a standard normal.
        """
        n, draw = self.train_config.n_rollout_threads, self.random_actions
        actions = np.zeros((n, self.layout.num_agents, self.layout.action_dim), np.float32)
        for i, space in enumerate(self.layout.action_spaces):
            if isinstance(space, spaces.Box):
                bounded = np.isfinite(space.low) & np.isfinite(space.high)
                low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
                width = space.shape[0]
                even = draw.uniform(low, high, (n, width))
                actions[:, i, :width] = np.where(bounded, even, draw.standard_normal((n, width)))
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
        if self.bridge is not None:
            executed, _, _ = self.bridge.override_actions(self.env_steps, before.obs, before.available_actions, actions)
        outcome = self.envs.step(executed)
        check_finite(outcome, self.layout, self.env_steps)
        self.insert(before, executed, outcome)
        self.now = Seen.of(outcome)
        self.env_steps += self.train_config.n_rollout_threads

    def insert(self, before: Seen, actions: FloatArray, outcome: EnvStep) -> None:
        """Write one vector step into the buffer and count it."""
        self.tracker.add(outcome.rewards, outcome.ended)
        if outcome.metrics:
            self.env_metrics.add(outcome.metrics)
        self.buffer.insert(before, actions, outcome)
        self.means.count_steps(self.train_config.n_rollout_threads)

    def learn_for_a_while(self) -> None:
        """A bout of updates: `train_interval` · `update_per_train`."""
        self.prep_training()
        self.decay_learning_rates()
        with self.means.timed("update"):
            for _ in range(max(1, round(self.train_config.train_interval * self.train_config.update_per_train))):
                self.train()
            self._note_metrics()
        self.threads.for_acting()

    def _note_metrics(self) -> None:
        for owner, metrics in self.metrics.items():
            prefix = "critic" if owner == "critic" else f"agent/{owner}"
            message = owner if owner == "critic" else f"actor of {owner}"
            self.means.add({f"{prefix}/{name}": value for name, value in metrics.means(message).items()})
            self.metrics[owner] = Metrics()

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
        batch = self.buffer.sample(self.algo.batch_size)
        entries: list[Tensor] = []
        log_probs: list[Tensor | None] = []
        for i, actor in enumerate(self.team.actors):
            masks = actor.own_mask(batch.next_available_actions, i)
            entry, log_prob = actor.following(actor.own(batch.next_obs, i), masks)
            entries.append(entry)
            log_probs.append(log_prob)
        self.metrics["critic"].add(**self.critic.train(batch, entries, log_probs))
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
        self.logger.scalars(self.env_steps, {**episodes, **self.env_metrics.drain(), **self.means.drain()})

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
        """Take over the weights of actors and critic, slow ones and normaliser included."""
        for actor in self.team.own:
            kept = state["actors"][actor.name]
            actor.set_state({name: part for name, part in kept.items() if name in ("policy", "target")})
        self.critic.set_state({name: part for name, part in state["critic"].items() if name != "optimizer"})

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
            "exploration": self.exploration.get_state(),
            "replay_order": self.replay_order.get_state(),
            "agent_order": self.agent_order.get_state(),
            "random_actions": self.random_actions.bit_generator.state,
        }

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; what could not be saved is named in the log."""
        self.vector_steps, self.total_it = state["vector_steps"], state["total_it"]
        self.tracker.set_state(state["tracker"])
        self.means.set_state(state["means"])
        self.exploration.set_state(state["exploration"])
        self.replay_order.set_state(state["replay_order"])
        self.agent_order.set_state(state["agent_order"])
        self.random_actions.bit_generator.state = state["random_actions"]
        if state["replay"] is not None:
            self.buffer.set_state(state["replay"])
        elif self.env_steps:
            self.enough = max(self.algo.batch_size, self.train_config.warmup_steps)
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
            self._start_envs(
                self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.train_config.n_rollout_threads, self.env_steps)
            )
