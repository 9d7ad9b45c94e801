"""Collecting rollouts, judging them, and learning from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harl.algorithms.actors.on_policy import Lesson, OnPolicyActor
from harl.algorithms.base import NonFiniteError
from harl.algorithms.inputs import central_state, mlp_spec, recurrence
from harl.algorithms.team import Team, TeamMemory
from harl.buffers.returns import discounted_returns, generalised_advantages
from harl.buffers.rollout import RolloutBuffer
from harl.config import ModelConfig, OnPolicyAlgoConfig, TrainConfig
from harl.envs.api import EnvStep
from harl.experiment.episodes import EnvMetrics, EpisodeTracker
from harl.experiment.seeding import Purpose
from harl.models.value import VNet
from harl.registry import ALGORITHMS, on_policy_parts
from harl.runners.announce import announce_team
from harl.runners.checks import check_finite
from harl.runners.evaluation import ActionClipper
from harl.runners.on_policy_people import OnPolicyPeople
from harl.runners.runner import Runner
from harl.runners.running_means import RunningMeans
from harl.runners.values import Valuer


class Collected(NamedTuple):
    """What the team decided for one step; all (N, A, action_dim), views of the buffer."""

    actions: Tensor
    """Samples of the policies, unclipped."""
    action_log_probs: Tensor
    """Log-probabilities of their factors."""


class OnPolicyBaseRunner(Runner):
    """The loop of on-policy algorithms; subclasses say in which order the agents learn (`train`)."""

    team: Team
    family = "on_policy"
    people: OnPolicyPeople | None = None

    def build_learners(self) -> None:
        """Make the team, one actor for each network, the critic and the buffer."""
        train, model, algo = self.algo_args.train, self.algo_args.model, self.algo_args.algo
        assert isinstance(train, TrainConfig)
        assert isinstance(model, ModelConfig)
        assert isinstance(algo, OnPolicyAlgoConfig)
        self.train_config, self.model_config, self.algo = train, model, algo
        self.minibatch_order = self._generator(Purpose.MINIBATCH)
        self.agent_order = self._generator(Purpose.AGENT_ORDER)
        actor, critic = on_policy_parts(ALGORITHMS[algo.name])
        self.team = Team(self.layout, model, algo.share_param, self.device)
        names = ["the shared policy"] if algo.share_param else list(self.layout.agents)
        self.actors: list[OnPolicyActor] = []
        for i, name in enumerate(names):
            stacked, row = self.team.location(i)
            self.actors.append(actor(name, self.team.networks[i], stacked.parameters, row, algo, self.minibatch_order))
        network = VNet(central_state(self.layout), mlp_spec(model)).to(self.device)
        self.critic = critic(network, algo, self.minibatch_order)
        self.valuer = Valuer(self.critic)
        memory = recurrence(model, train.episode_length)
        self.buffer = RolloutBuffer(self.layout, train.episode_length, train.n_rollout_threads, self.device, memory)
        self.clip = ActionClipper(self.layout)
        self.tracker = EpisodeTracker(train.n_rollout_threads, self.layout.agents)
        self.env_metrics = EnvMetrics()
        self.means = RunningMeans()
        self.t = 0
        """Steps of the current rollout that are in the buffer."""
        self.iteration = 0
        if self.learning is not None:
            self.people = OnPolicyPeople(self, self.learning)
        self.driving = self.people if self.bridge is not None else None
        """People who may take part in every step."""
        self.train_return: float | None = None
        """Mean return of the training episodes in the last line of the log."""

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.buffer.episode_length * self.buffer.num_envs

    @property
    def iterations(self) -> int:
        """Iterations of the whole run: the budget rounded up to whole ones, at least one."""
        return max(1, -(-self.train_config.num_env_steps // self.iteration_steps))

    @property
    def total_steps(self) -> int:
        """The budget, rounded up to whole iterations."""
        return self.iterations * self.iteration_steps

    def learn(self) -> None:
        """Train; see `run`."""
        self.announce()
        self.warmup()
        self.join_people()
        while True:
            self.evaluate_when_due(final=self.finished)
            self.save_when_due()
            if self.finished or self.stop_requested:
                return
            self.decay_learning_rates()
            self.prep_rollout()
            if not self.rollout():
                return
            if self.driving is not None:
                self.driving.late_feedback()
            self.prep_training()
            with self.means.timed("update"):
                actor_infos, critic_info = self.update()
            self.log(actor_infos, critic_info)
            self.after_update()

    def announce(self) -> None:
        """Say what is about to happen, and where it differs from what was typed."""
        announce_team(self)
        train = self.train_config
        total = self.total_steps
        self.logger.message(
            f"{self.iterations} iterations of {train.episode_length} steps x {train.n_rollout_threads} environments "
            f"on {self.device}, threads {self.threads.acting} acting, {self.threads.updating} updating; "
            f"rollout buffer {self.buffer.nbytes / 2**20:.1f} MiB"
        )
        if total != train.num_env_steps:
            self.logger.message(
                f"train.num_env_steps={train.num_env_steps} is no multiple of one iteration "
                f"({self.iteration_steps} environment steps): this run ends at {total}"
            )

    def warmup(self) -> None:
        """Start the environments and write what the agents see first into the buffer; takes no step."""
        if self.env_steps > 0:
            return
        self._start_envs(self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.buffer.num_envs))

    def shown(self) -> EnvStep:
        """What slot t of the buffer has, with nothing earned and nothing ended."""
        buffer, t, agents = self.buffer, self.t, self.layout.num_agents
        state = buffer.share_obs[t] if buffer.per_agent_values else buffer.share_obs[t].unsqueeze(1)
        masks = None if buffer.available_actions is None else buffer.available_actions[t].cpu().numpy()
        no = np.zeros((buffer.num_envs, agents), np.bool_)
        return EnvStep(
            obs=buffer.obs[t].cpu().numpy(),
            share_obs=state.expand(buffer.num_envs, agents, *state.shape[2:]).cpu().numpy(),
            available_actions=masks,
            active=buffer.active[t].cpu().numpy(),
            rewards=np.zeros((*no.shape, 1), np.float32),
            terminated=no,
            truncated=no,
            ended=no[:, 0],
        )

    def _start_envs(self, seeds: list[int]) -> None:
        first, self.reset_seeds = self.envs.reset(seeds), seeds
        check_finite(first, self.layout, self.env_steps)
        self.buffer.set_first(first)

    def rollout(self) -> bool:
        """Fill the buffer with T steps of each environment.

        Returns:
            Whether it is full; False where a signal to stop came in between.
        """
        with self.means.timed("collect"):
            while self.t < self.buffer.episode_length:
                if self.stop_requested:
                    return False
                collected = self.collect(self.t)
                actions = self.clip(collected.actions)
                if self.driving is not None:
                    actions = self.driving.drive(collected, actions)
                self.insert(self.envs.step(actions))
        return True

    def collect(self, step: int) -> Collected:
        """Let the team act on slot `step` of the buffer; values are left to `compute`, for all steps at once."""
        views = self.buffer.views
        masks = views["available_actions"][step] if "available_actions" in views else None
        collected = Collected(views["actions"][step], views["action_log_probs"][step])
        memory = None
        if "hidden" in views:
            memory = TeamMemory(views["hidden"][step], views["masks"][step], views["hidden"][step + 1])
        self.team.act(views["obs"][step], masks, False, self.sampling, *collected, memory)
        return collected

    def insert(self, data: EnvStep) -> None:
        """Write the outcome of a step into the buffer and count it."""
        if self.driving is not None:
            data = self.driving.take_marks(data)
        check_finite(data, self.layout, self.env_steps)
        self.tracker.add(data.rewards, data.ended, data.active)
        if data.metrics:
            self.env_metrics.add(data.metrics)
        self.buffer.insert(self.t, data)
        if self.driving is not None:
            self.driving.learn_of(data)
        self.t += 1
        self.env_steps += self.buffer.num_envs

    @torch.no_grad()
    def compute(self) -> None:
        """Values of all states of the rollout, then returns and advantages on the scale of rewards."""
        buffer, critic, algo = self.buffer, self.critic, self.algo
        self.valuer.fill(buffer)
        values = critic.denormalize(buffer.value_preds)
        rewards, continues, cut = self.learning_rewards(), self.continues(), self.cuts()
        end_values = torch.zeros_like(rewards)
        if algo.time_limit == "bootstrap":
            self._bootstrap(end_values, values, cut)
        zeroed = cut if algo.time_limit == "mask" else None
        trace = None if self.people is None else self.people.trace()
        if algo.use_gae:
            advantages = generalised_advantages(
                rewards, values, continues, end_values, algo.gamma, algo.gae_lambda, zeroed, trace
            )
            torch.add(advantages, values[:-1], out=buffer.returns)
        else:
            buffer.returns.copy_(discounted_returns(rewards, values, continues, end_values, algo.gamma, zeroed, trace))
        self.advantages = buffer.returns - values[:-1]

    def learning_rewards(self) -> Tensor:
        """What the value function adds up: (T, N, 1) for the team, (T, N, A, 1) for each agent; see `env.reward`."""
        rewards, how = self.buffer.rewards, self.env_args.reward
        if how == "individual":
            return rewards
        team = rewards.sum(2) if how == "shared_sum" else rewards.mean(2)
        return team.unsqueeze(2).expand_as(rewards).contiguous() if self.buffer.per_agent_values else team

    def continues(self) -> Tensor:
        """1.0 where the next state belongs to the same life, of the team or of each agent; 0.0 at ends."""
        buffer = self.buffer
        goes_on = ~buffer.ended.unsqueeze(-1)
        if buffer.per_agent_values:
            alive = (buffer.active[1:, ..., 0] > 0) & ~buffer.terminated & ~buffer.truncated
            goes_on = (goes_on & alive).unsqueeze(-1)
        return goes_on.to(torch.float32)

    def cuts(self) -> Tensor:
        """Where an episode was cut rather than over, of the team (T, N, 1) or of each agent (T, N, A, 1).

        The team's was cut if any agent that was still in it was truncated and not terminated.
        """
        buffer = self.buffer
        cut = buffer.truncated & ~buffer.terminated & (buffer.active[:-1, ..., 0] > 0)
        if buffer.per_agent_values:
            return cut.unsqueeze(-1)
        return (cut.any(-1) & buffer.ended).unsqueeze(-1)

    def _bootstrap(self, end_values: Tensor, values: Tensor, cut: Tensor) -> None:
        """Write the value of the state in which an episode was cut into `end_values`."""
        buffer = self.buffer
        end_values.copy_(torch.where(cut, values[1:], 0.0))
        if not buffer.final_share_obs:
            return
        steps, envs, final = self.valuer.finals(buffer)
        end_values[steps, envs] = torch.where(cut[steps, envs], self.critic.denormalize(final), 0.0)

    def update(self) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Judge the rollout and learn from it; see `train`.

        Raises:
            NonFiniteError: a loss or a gradient became NaN or infinite; names the agent, the number and the step.
        """
        self.compute()
        if self.people is not None:
            self.people.prepare(self.advantages)
        try:
            return self.train()
        except NonFiniteError as error:
            raise NonFiniteError(
                f"{error}, after {self.env_steps} environment steps; the checkpoints are from before it"
            ) from None

    @abstractmethod
    def train(self) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Update actors and critic from the buffer.

        Returns:
            Numbers to report: those of each agent by its name, and those of the critic.
        """

    def lesson(self, agent: int) -> Lesson | None:
        """What an agent, or the policy that all share, learns from people in this update; None for nothing."""
        return None if self.people is None else self.people.lesson(agent)

    def after_update(self) -> None:
        """Make the buffer ready for the next rollout."""
        self.buffer.after_update()
        if self.people is not None:
            self.people.overrides.clear()
        self.t = 0
        self.iteration += 1

    def decay_learning_rates(self) -> None:
        """With `train.use_linear_lr_decay`, lr · (1 − k / K) in the iteration that k of K iterations come before."""
        if self.train_config.use_linear_lr_decay:
            fraction = max(0.0, 1.0 - self.iteration / self.iterations)
            for actor in self.actors:
                actor.set_lr_fraction(fraction)
            self.critic.set_lr_fraction(fraction)

    def log(self, actor_infos: Mapping[str, Mapping[str, float]], critic_info: Mapping[str, float]) -> None:
        """Take the numbers of an update in, and write the means since the last line when it is time."""
        for agent, info in actor_infos.items():
            self.means.add({f"agent/{agent}/{name}": value for name, value in info.items()})
        self.means.add({f"critic/{name}": value for name, value in critic_info.items()})
        self.means.count_steps(self.iteration_steps)
        episodes = None
        if self.due["log"].reached(self.env_steps) or self.finished:
            self.due["log"].advance(self.env_steps)
            episodes = self.tracker.drain()
            self.train_return = episodes.get("train/return_sum", self.train_return)
        self.logger.progress(self.env_steps, "collect", self.means.steps_per_second, self.train_return)
        if episodes is not None:
            told = {**episodes, **self.env_metrics.drain(), **self.means.drain()}
            if self.people is not None:
                told.update(self.people.counts.drain())
            self.logger.scalars(self.env_steps, told)

    # Checkpoints.

    def learner_state(self) -> dict[str, Any]:
        """Every actor by the name of its agent, and the critic."""
        return {"actors": {actor.name: actor.get_state() for actor in self.actors}, "critic": self.critic.get_state()}

    def load_learners(self, state: Mapping[str, Any]) -> None:
        """Take over actors and critic with their optimisers."""
        for actor in self.actors:
            actor.set_state(state["actors"][actor.name])
        self.critic.set_state(state["critic"])
        self.team.refresh()

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over the weights of actors and critic, and the normaliser."""
        for actor in self.actors:
            actor.set_state({"policy": state["actors"][actor.name]["policy"]})
        self.critic.set_state({name: part for name, part in state["critic"].items() if name != "optimizer"})
        self.team.refresh()

    def progress_state(self) -> dict[str, Any]:
        """The rollout so far, environments, episode statistics, generators, counters."""
        return {
            "envs": self.envs.get_state() if self.envs.can_save_state else None,
            "buffer": self.buffer.get_state(self.t),
            "t": self.t,
            "iteration": self.iteration,
            "tracker": self.tracker.get_state(),
            "env_metrics": self.env_metrics.get_state(),
            "means": self.means.get_state(),
            "minibatch_order": self.minibatch_order.get_state(),
            "agent_order": self.agent_order.get_state(),
            **({} if self.people is None else {"people": self.people.get_state()}),
        }

    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; environments that cannot save their state are reset, and the log says so."""
        self.iteration, self.t = state["iteration"], state["t"]
        self.env_metrics.set_state(state["env_metrics"])
        self.means.set_state(state["means"])
        self.minibatch_order.set_state(state["minibatch_order"])
        self.agent_order.set_state(state["agent_order"])
        self.buffer.set_state(state["buffer"])
        self.tracker.set_state(state["tracker"])
        if self.people is not None and "people" in state:
            self.people.set_state(state["people"])
        if state["envs"] is not None:
            self.envs.set_state(state["envs"])
            return
        self.notices.append(
            f"{self.envs.name} cannot save its state: the environments were reset"
            + (f" and {self.t} steps of an unfinished rollout are taken again" if self.t else "")
        )
        self.env_steps -= self.t * self.buffer.num_envs
        self.t = 0
        self.buffer.final_share_obs.clear()
        self.tracker.reset()
        if self.people is not None:
            self.people.restart()
        self._start_envs(self.seeds.env_seeds(Purpose.TRAIN_ENVS, self.buffer.num_envs, start=self.env_steps))
