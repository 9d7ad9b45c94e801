"""What every runner does: environments, seeds, the run folder, evaluation, rendering, checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch

from harl.algorithms.base import NonFiniteError
from harl.algorithms.team import Acting
from harl.config import AlgoArgs, Config, ConfigError, EnvArgs, RunArgs, save_yaml
from harl.envs.api import VectorEnv
from harl.experiment.checkpoint import CheckpointStore, CheckpointWarning
from harl.experiment.interrupts import GracefulStop
from harl.experiment.logger import RunLogger
from harl.experiment.metrics_csv import dump_metrics_to_csv
from harl.experiment.progress import ProgressMode
from harl.experiment.run_folder import RunFolder, Status
from harl.experiment.seeding import (
    Purpose,
    SeedStreams,
    draw_seed,
    global_rng_state,
    seed_everything,
    set_global_rng_state,
)
from harl.hitl.bridge import Bridge
from harl.registry import make_envs, unsupported
from harl.runners.device import Threads, choose_device
from harl.runners.due import Due
from harl.runners.evaluation import Episode, global_generators_kept, play, step_metrics
from harl.runners.film import Film
from harl.runners.identity import describe_team, refuse_other_team
from harl.runners.policy import find_checkpoint
from harl.runners.with_people import WithPeople


class RunInterrupted(SystemExit):
    """The run was asked to stop by a signal and has saved; the exit code is 128 + the signal's number."""


class Runner(WithPeople, ABC):
    """A run: from its config to its last checkpoint.

    Args:
        args: run-level sections: seed, exp_name, output_dir, device, checkpoint, logger, hitl, resume, init_from.
        algo_args: the sections train, model, eval and algo.
        env_args: the section env.
        bridge: how people take part, see `harl.hitl`; None for nobody.

    Raises:
        ConfigError: the algorithm cannot train these agents; before anything is written.
    """

    team: Acting

    _ending: Status = "interrupted"
    _begun = False
    """How the run ended, as long as nothing else is said."""

    def __init__(self, args: RunArgs, algo_args: AlgoArgs, env_args: EnvArgs, bridge: Bridge | None = None) -> None:
        self.args, self.algo_args, self.env_args, self.bridge = args, algo_args, env_args, bridge
        self._cleanup = ExitStack()
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise

    def _build(self) -> None:
        if self.args.seed is None:
            self.args = dataclasses.replace(self.args, seed=draw_seed())
        args = self.args
        assert args.seed is not None
        self.stopping = GracefulStop()
        self.notices: list[str] = []
        self.device = choose_device(args.device)
        self.threads = Threads(args.device)
        self.seeds = SeedStreams(args.seed)
        seed_everything(self.seeds)
        envs = make_envs(self.env_args, self.algo_args.train.n_rollout_threads, render=self.bridge is not None)
        self.envs = self._cleanup.enter_context(contextlib.closing(envs))
        self.layout = self.envs.layout
        problems = unsupported(Config(run=args, algo=self.algo_args, env=self.env_args), self.layout)
        problems += self.people_problems()
        if problems:
            raise ConfigError(problems)
        self._eval_envs: VectorEnv | None = None
        self.env_steps = 0
        self.notices += self.resolve_learning()
        self.sampling = self._generator(Purpose.SAMPLING, self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seeds.integer(Purpose.MODEL))
            self.build_learners()
        train, evaluation, checkpoint = self.algo_args.train, self.algo_args.eval, args.checkpoint
        self.due = {
            "log": Due(train.log_interval, first=train.log_interval),
            "eval": Due(evaluation.interval, first=0 if evaluation.at_start else evaluation.interval),
            "save": Due(checkpoint.interval, first=checkpoint.interval),
        }
        self.best_return = -math.inf
        self.last_return: float | None = None
        self.team_description = describe_team(self.layout, self.algo_args)
        if args.init_from is not None and args.resume is None:
            self._start_from(args.init_from)
        self._open_folder()
        self._open_logs()

    def _generator(self, purpose: Purpose, device: torch.device | str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(self.seeds.integer(purpose))

    def _open_folder(self) -> None:
        args, algo = self.args, self.algo_args.algo.name
        if args.resume is not None:
            self.folder = RunFolder.open(args.resume)
        else:
            env, scenario = self.envs.name, self.envs.scenario
            self.folder = RunFolder.create(args.output_dir, env, scenario, algo, args.exp_name, self.seeds.seed)
        self._cleanup.enter_context(self.folder.lock())
        self.store = CheckpointStore(self.folder.checkpoints, keep_last=args.checkpoint.keep_last)
        if args.resume is not None:
            self.restore()
        stored = dataclasses.replace(args, resume=None)
        save_yaml(self.folder.config, Config(run=stored, algo=self.algo_args, env=self.env_args))

    def _start_from(self, path: str) -> None:
        """Take over the weights of another run, before anything of this one is written."""
        source, which = find_checkpoint(path)
        _, state = CheckpointStore(source.checkpoints, keep_last=1).load(which, keys=("team", "learners"))
        refuse_other_team(state["team"], self.team_description, str(source.path))
        self.load_weights(state["learners"])
        self.notices.append(f"started from the weights of {source.path}, checkpoint {which}")

    def _open_logs(self) -> None:
        """Say that the run goes on from here, and cut the logs to that."""
        self.folder.write_meta({"seed": self.args.seed, "env_steps_at_start": self.env_steps})
        self.folder.write_status("running")
        self.logger = RunLogger(
            self.folder,
            total_steps=self.total_steps,
            progress=cast(ProgressMode, self.args.logger.progress),
            tensorboard=self.args.logger.tensorboard,
            resume_step=self.env_steps if self.args.resume is not None else None,
        )

    # What the families of runners fill in.

    @abstractmethod
    def build_learners(self) -> None:
        """Make `team` and whatever learns, under the seed of the model."""

    @abstractmethod
    def learn(self) -> None:
        """Train until the budget is used up or `stopping` says to stop."""

    @abstractmethod
    def learner_state(self) -> dict[str, Any]:
        """Weights, normalisers and optimisers, by owner."""

    @abstractmethod
    def load_learners(self, state: Mapping[str, Any]) -> None:
        """Take over everything that `learner_state` gave."""

    @abstractmethod
    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over weights and normalisers from a `learner_state`, not the optimisers."""

    @abstractmethod
    def progress_state(self) -> dict[str, Any]:
        """What else the rest of the run depends on: environments, buffers, counters, generators."""

    @abstractmethod
    def load_progress(self, state: Mapping[str, Any]) -> None:
        """Continue from a `progress_state`."""

    # A run.

    @property
    def finished(self) -> bool:
        """Whether the budget of environment steps is used up."""
        return self.env_steps >= self.algo_args.train.num_env_steps

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Environment steps at which the run ends: the budget, rounded up to what can be taken at once."""

    @property
    def stop_requested(self) -> bool:
        """Whether a signal has asked the run to stop."""
        return self.stopping.requested

    def run(self) -> float | None:
        """Train to the end of the budget.

        Returns:
            The mean return, summed over agents, of the last evaluation; None without evaluation.

        Raises:
            RunInterrupted: a signal asked to stop; everything is saved and the run can be resumed.
            NonFiniteError, EnvError: see their texts; the last good checkpoint is whole.
        """
        self._begun = True
        try:
            with self.stopping:
                self.learn()
                if self.stop_requested:
                    self.save()
                    self._end("interrupted", f"signal {self.stopping.signal}")
                    raise RunInterrupted(self.stopping.exit_code)
                self.save()
                self.folder.mark_completed(
                    {
                        "env_steps": self.env_steps,
                        "last_return": self.last_return,
                        "best_return": self.best_return if math.isfinite(self.best_return) else None,
                    }
                )
                self._end("completed")
        except KeyboardInterrupt:
            self._end("interrupted", "stopped at once by a second Ctrl-C, without saving")
            raise
        except Exception as error:
            self._end("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self.close()
        return self.last_return

    def _end(self, status: Status, reason: str = "") -> None:
        self._ending = status
        if status != "completed":
            self.folder.write_status(status, reason)
        self.logger.progress(self.env_steps, status)
        self.logger.close(status)

    def evaluate_when_due(self, final: bool = False) -> None:
        """Evaluate if it is time, or if this is the end and the current weights have not been evaluated."""
        if not self.algo_args.eval.use_eval:
            return
        due = self.due["eval"]
        if due.reached(self.env_steps) or (final and due.last != self.env_steps):
            started = time.perf_counter()
            episodes = self.eval()
            if episodes is not None:
                due.advance(self.env_steps)
                self._note_evaluation(episodes, time.perf_counter() - started)

    def _note_evaluation(self, episodes: Sequence[Episode], seconds: float) -> None:
        returns = [episode.return_sum for episode in episodes]
        mean = sum(returns) / len(returns)
        if not math.isfinite(mean):
            raise NonFiniteError(f"the mean return of the evaluation at {self.env_steps} environment steps is {mean}")
        self.last_return = mean
        self.logger.evaluation(self.env_steps, [episode.record() for episode in episodes])
        self.logger.scalars(
            self.env_steps,
            {
                "eval/return_sum": mean,
                "eval/return_mean": mean / self.layout.num_agents,
                "eval/return_sum_std": _std(returns),
                "eval/episode_length": sum(episode.length for episode in episodes) / len(episodes),
                "time/evaluation_s": seconds,
            },
        )
        if mean > self.best_return:
            self.best_return = mean
            self.save()

    def save_when_due(self) -> None:
        """Save a checkpoint if it is time."""
        if self.due["save"].reached(self.env_steps):
            self.due["save"].advance(self.env_steps)
            self.save()

    def prep_rollout(self) -> None:
        """Make ready to act: take the current weights over into the stacked form."""
        self.threads.for_acting()
        self.team.refresh()

    def prep_training(self) -> None:
        """Make ready to learn."""
        self.threads.for_update()

    # Evaluation and rendering.

    @global_generators_kept()  # environments may draw from them as soon as they are made
    @torch.no_grad()
    def eval(self) -> list[Episode] | None:
        """Play `eval.eval_episodes` episodes with the mode of each policy.

        An equal quota for each of `eval.n_eval_rollout_threads` environments, always the same episodes, in
        environments of their own: training sees nothing of it.

        Returns:
            The episodes, or None where a signal to stop came in between; then the evaluation stays due.
        """
        self.prep_rollout()
        config = self.algo_args.eval
        count = min(config.n_eval_rollout_threads, config.eval_episodes)
        if self._eval_envs is None:
            self._eval_envs = self._cleanup.enter_context(contextlib.closing(make_envs(self.env_args, count)))
        episodes = play(
            self.team,
            self._eval_envs,
            self.seeds.env_seeds(Purpose.EVAL_ENVS, count),
            config.eval_episodes,
            keep_steps=config.dump_metrics,
            stop=lambda: self.stop_requested,
        )
        if episodes is not None and config.dump_metrics:
            self.dump_metrics_to_csv(step_metrics(episodes, self.layout), len(episodes))
        return episodes

    def dump_metrics_to_csv(self, metrics: Mapping[str, Sequence[Mapping[str, Any]]], eval_episode: int) -> Path:
        """Write what each step of an evaluation was like, for each agent, into a CSV file of its own.

        Args:
            metrics: agent → one mapping a step; keys may be missing and lengths may differ.
            eval_episode: how many episodes these are; part of the file's name, as the number of steps trained is.

        Returns:
            The path of the file, in the run folder.
        """
        return dump_metrics_to_csv(metrics, eval_episode, self.folder.path / "evaluation_data", self.env_steps)

    @global_generators_kept()
    @torch.no_grad()
    def render(self, episodes: int = 1, fps: int = 10) -> list[Path]:
        """Film episodes of the current policies, acting by their modes; returns the paths of the videos."""
        self.prep_rollout()
        seeds = self.seeds.env_seeds(Purpose.RENDER_ENVS, 1)
        with (
            contextlib.closing(make_envs(self.env_args, 1, render=True)) as envs,
            Film(envs, self.folder.videos, str(self.env_steps), fps) as film,
        ):
            play(self.team, envs, seeds, episodes, picture=film.picture)
        return film.paths

    # Checkpoints.

    def save(self) -> Path:
        """Write a checkpoint of everything that the rest of the run depends on."""
        state = {
            "team": self.team_description,
            "learners": self.learner_state(),
            "progress": self.progress_state(),
            "counters": {
                "env_steps": self.env_steps,
                "due": {name: due.get_state() for name, due in self.due.items()},
                "best_return": self.best_return,
                "last_return": self.last_return,
            },
            "rng": {"global": global_rng_state(), "sampling": self.sampling.get_state()},
        }
        # Weights that were just evaluated keep their score, whatever the occasion for saving them.
        score = self.last_return if self.due["eval"].last == self.env_steps else None
        return self.store.save(self.env_steps, state, score)

    def restore(self) -> None:
        """Continue from the checkpoint that `resume` names, or else from the newest whole one of the folder."""
        assert self.args.resume is not None
        _, which = find_checkpoint(self.args.resume, "latest")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckpointWarning)
            saved_at, state = self.store.load(which)
        self.notices += [str(warning.message) for warning in caught]
        self.store.discard_after(saved_at)
        refuse_other_team(state["team"], self.team_description, str(self.folder.path))
        self.load_learners(state["learners"])
        counters = state["counters"]
        self.env_steps = counters["env_steps"]
        for name, due in self.due.items():
            due.set_state(counters["due"][name])
        self.best_return, self.last_return = counters["best_return"], counters["last_return"]
        self.sampling.set_state(state["rng"]["sampling"])
        self.load_progress(state["progress"])
        # Last, since environments may draw from them while their state is brought back.
        set_global_rng_state(state["rng"]["global"])

    def close(self) -> None:
        """Let people go, close environments, logs and the lock on the run folder; may be called twice."""
        if self.bridge is not None:
            self.bridge.close(self._ending)
        if hasattr(self, "logger"):
            self.logger.close("interrupted" if self._begun else None)
        self._cleanup.close()


def _std(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
