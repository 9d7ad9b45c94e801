"""Playing a trained team again, from its run folder alone."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from harl.config import RenderOptions
from harl.envs.api import FloatArray, VectorEnv
from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.run_folder import RunFolder
from harl.experiment.seeding import Purpose, SeedStreams, draw_seed
from harl.experiment.video import available_encoder
from harl.hitl.bridge import Bridge, Stage
from harl.registry import make_envs
from harl.runners.audience import Audience
from harl.runners.evaluation import Episode, play
from harl.runners.film import Film
from harl.runners.policy import load_policy


class Playback:
    """Episodes of one checkpoint of a run.

    Args:
        run: the run folder.
        options: which checkpoint, how many episodes, with or without video.
        bridge: how people take part; None for nobody.
    """

    def __init__(self, run: str | Path, options: RenderOptions, bridge: Bridge | None = None) -> None:
        self.options, self.bridge = options, bridge
        self.folder = RunFolder.open(run)
        self.policy = load_policy(run, options.checkpoint)
        seed = options.seed if options.seed is not None else self.policy.config.run.seed
        self.streams = SeedStreams(draw_seed() if seed is None else seed)
        self.videos: list[Path] = []
        """Files that were written."""
        kind = "deterministic" if options.deterministic else "sampled"
        self._stem = f"{self.policy.env_steps}_{kind}_seed-{self.streams.seed}"
        self.replaces = self._there_already()
        """Files of an earlier playback that this one writes anew."""

    def describe(self) -> str:
        """What is going to be played."""
        config = self.policy.config
        video = f"video as {available_encoder()}" if self.options.video else "no video"
        newest = CheckpointStore(self.folder.checkpoints, keep_last=1).latest or 0
        steps = self.policy.env_steps
        later = f" (there is one of {newest:,}: render.checkpoint=latest)" if newest > steps else ""
        return (
            f"{config.algo.algo.name} on {config.env.name}, trained for {steps:,} environment steps{later}; "
            f"{self.options.episodes} episodes, {'most likely' if self.options.deterministic else 'sampled'} actions, "
            f"seed {self.streams.seed}, {video}"
        )

    def play(self) -> list[Episode]:
        """Play the episodes one after the other in one environment."""
        generator = torch.Generator().manual_seed(self.streams.integer(Purpose.SAMPLING))
        seeds = self.streams.env_seeds(Purpose.RENDER_ENVS, 1)
        with contextlib.ExitStack() as stack:
            shown = self.options.video or self.bridge is not None
            envs = stack.enter_context(contextlib.closing(make_envs(self.policy.config.env, 1, shown)))
            audience = None if self.bridge is None else Audience(self.bridge, self._stage(envs, seeds))
            film = None
            if self.options.video:
                film = stack.enter_context(Film(envs, self.folder.videos, self._stem, self.options.fps))
            episodes = play(
                self.policy.team,
                envs,
                seeds,
                self.options.episodes,
                self.options.deterministic,
                generator,
                picture=None if film is None else film.picture,
                audience=audience,
            )
        assert episodes is not None
        self.videos = [] if film is None else film.paths
        return episodes

    @property
    def _table_path(self) -> Path:
        return self.folder.videos / f"{self._stem}_episodes.csv"

    def _there_already(self) -> list[Path]:
        paths = [self._table_path]
        if self.options.video:
            encoder = available_encoder()
            paths += [self.folder.videos / f"{self._stem}_episode-{k}.{encoder}" for k in range(self.options.episodes)]
        return [path for path in paths if path.exists()]

    def _stage(self, envs: VectorEnv, seeds: Sequence[int]) -> Stage:
        """What people are told of the playback."""
        config, team = self.policy.config, self.policy.team
        name = config.algo.algo.name

        def log_probs(obs: FloatArray, masks: FloatArray | None, actions: FloatArray) -> FloatArray | None:
            return None  # recurrent policies would need the memory that `play` keeps

        return Stage(
            layout=team.layout,
            num_envs=envs.num_envs,
            purpose="evaluate",
            title=f"{name} on {envs.name}/{envs.scenario}, trained for {self.policy.env_steps:,} environment steps",
            env_name=envs.name,
            scenario=envs.scenario,
            algo=name,
            folder=self.folder.path,
            sums_rewards=config.env.reward == "shared_sum",
            total_steps=0,
            render=envs.render,
            scene=envs.scene,
            watch_ends=envs.watch_ends,
            render_end=envs.render_end,
            earliest=lambda: 0,
            stopping=lambda: False,
            log_probs=log_probs,
            notice=print,
            metrics=lambda numbers: None,
            env_state=lambda: envs.get_state() if envs.can_save_state else None,
            seed_of=lambda env: seeds[env],
        )

    def summary(self, episodes: Sequence[Episode]) -> str:
        """Mean and spread of the returns, summed over agents and of each agent; episodes with people apart."""
        alone = [episode for episode in episodes if not episode.human_steps]
        touched = [episode for episode in episodes if episode.human_steps]
        parts = [self._table(alone)] if alone else []
        if touched:
            parts.append(f"with people, in {len(touched)} of {len(episodes)} episodes:\n{self._table(touched)}")
        return "\n".join(parts)

    @staticmethod
    def _table(episodes: Sequence[Episode]) -> str:
        lines = [f"return, summed over agents: {_spread([episode.return_sum for episode in episodes])}"]
        lines += [
            f"  {agent}: {_spread([episode.returns[agent] for episode in episodes])}" for agent in episodes[0].returns
        ]
        return "\n".join([*lines, f"length: {_spread([float(episode.length) for episode in episodes])}"])

    def write_table(self, episodes: Sequence[Episode]) -> Path:
        """One row an episode, beside the videos."""
        path = self._table_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            agents = list(episodes[0].returns)
            writer = csv.writer(file)
            writer.writerow(
                [
                    "episode",
                    "seed",
                    "length",
                    "return_sum",
                    "return_mean",
                    "human_steps",
                    *(f"return/{a}" for a in agents),
                ]
            )
            for episode in episodes:
                own = [episode.returns[agent] for agent in agents]
                sums = [episode.return_sum, episode.return_mean, episode.human_steps]
                writer.writerow([episode.index, episode.seed, episode.length, *sums, *own])
        return path


def _spread(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return f"{mean:.2f} ± {std:.2f} (lowest {min(values):.2f}, highest {max(values):.2f}, {len(values)} episodes)"
