"""`python -m harl.hitl.replay <session folder>`: what happened in a session, told, filmed and checked.

Each episode is played again in its environment, with the actions that were executed, and the rewards are compared with
those of the record.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.config import ConfigError
from harl.envs.api import EnvError, FloatArray, VectorEnv
from harl.experiment.files import StorageError
from harl.experiment.video import VideoWriter
from harl.hitl.bridge import Source
from harl.hitl.recording.caption import captioned
from harl.hitl.recording.reading import RecordedEpisode
from harl.hitl.recording.recordings import RecordingError, Session, find_sessions
from harl.registry import make_envs


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of playing an episode again."""

    returns: dict[str, float]
    """Raw return of each agent."""
    differs_at: int | None
    """First step whose rewards are not those of the record; None where all are the same to the bit."""
    video: Path | None


class CannotReplayError(RecordingError):
    """The record does not say in which state the environment was."""


def replay(episode: RecordedEpisode, envs: VectorEnv, film: VideoWriter | None = None) -> Replayed:
    """Play an episode again.

    Args:
        episode: as recorded.
        envs: one environment of the same kind.
        film: gets a picture before each action, with who drives.

    Raises:
        CannotReplayError: its start is not known, or a person's part was taken out.
    """
    _to_start(episode, envs)
    arrays, differs_at = episode.load(), None
    rewards: list[FloatArray] = []
    for t, actions in enumerate(arrays["executed"]):
        if film is not None:
            film.add(captioned(envs.render(0), caption(episode, arrays, t)))
        outcome = envs.step(actions[None])
        rewards.append(outcome.rewards[0, :, 0].copy())
        if differs_at is None and not np.array_equal(rewards[-1], arrays["reward"][t]):
            differs_at = t + episode.facts["first_step"]
    totals = np.stack(rewards).sum(axis=0, dtype=np.float64)
    returns = dict(zip(episode.session.layout.agents, totals.tolist(), strict=True))
    return Replayed(returns, differs_at, None if film is None else film.path)


def caption(episode: RecordedEpisode, arrays: Mapping[str, NDArray[Any]], t: int) -> list[tuple[str, bool]]:
    """Lines under the picture before step `t`; True where a person drives."""
    done = arrays["reward"][:t].sum(dtype=np.float64)
    lines = [(f"episode {episode.episode}   step {t + episode.facts['first_step']}   return {done:.2f}", False)]
    for i, agent in enumerate(episode.session.layout.agents):
        driver = int(arrays["controller"][t, i])
        human = driver >= 0
        who = episode.facts["controllers"][driver] if human else Source(int(arrays["source"][t, i])).name.lower()
        said = arrays["human_raw"][t, i]
        praise = "" if np.isnan(said) else f"   feedback {said:+.2g}"
        lines.append((f"{agent}: {who} drives{praise}", human))
    return lines


def summary(session: Session, episodes: Sequence[RecordedEpisode]) -> str:
    """What a session was."""
    facts = session.facts
    events = Counter(event.kind for event in session.events())
    people = sorted({name for episode in episodes for name in episode.people})
    steps, human = sum(e.steps for e in episodes), sum(e.human_steps for e in episodes)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(events.items())) or "none"
    kept = [name for name in ("condition", "consent_version") if facts.get(name) is not None]
    lines = [
        f"session {session.folder.name}: {facts['title']} ({facts['purpose']})",
        *[f"  {name.replace('_', ' ')}: {facts[name]}" for name in kept],
        f"  {len(episodes)} episodes, {steps} steps; people drove {human} steps of agents; {len(people)} took part"
        + (f": {', '.join(people)}" if people else ""),
        f"  events: {told}",
    ]
    return "\n".join(lines)


def describe(episode: RecordedEpisode) -> str:
    """One line."""
    facts = episode.facts
    driven = [f"{agent} {count}" for agent, count in facts["human_steps"].items() if count]
    marks = [name for name in ("is_partial", "discarded", "redacted") if facts.get(name)]
    marks += [] if facts["success"] is None else ["success" if facts["success"] else "fail"]
    return (
        f"episode {episode.episode} of environment {episode.env}: {episode.steps} steps, {facts['reason']}, return "
        f"{sum(facts['returns'].values()):.3f}, human steps: {', '.join(driven) or 'none'}"
        + (f" [{', '.join(marks).replace('is_partial', 'partial')}]" if marks else "")
    )


def verdict(episode: RecordedEpisode, replayed: Replayed) -> str:
    """Whether the record holds."""
    if replayed.differs_at is None and replayed.returns == episode.facts["returns"]:
        return "replayed: rewards and returns agree with the record"
    total, recorded = (sum(returns.values()) for returns in (replayed.returns, episode.facts["returns"]))
    where = "" if replayed.differs_at is None else f", first at step {replayed.differs_at}"
    return f"replayed: return {total:.6f} DIFFERS from the record's {recorded:.6f}{where}"


def _to_start(episode: RecordedEpisode, envs: VectorEnv) -> None:
    """Bring the environment to where the episode began."""
    if episode.redacted:
        raise CannotReplayError(f"{episode.label()} cannot be replayed: a person's actions were taken out of it")
    state, seed = episode.state(), episode.facts["seed"]
    if state is not None:
        envs.reset([0])
        envs.set_state(state)
    elif seed is not None and episode.episode == 0 and not episode.facts["first_step"]:
        envs.reset([seed])
    else:
        raise CannotReplayError(
            f"{episode.label()} cannot be replayed: the environment cannot save its state, and only the first episode "
            "after a reset with a known seed can be made again from the seed"
        )


@contextlib.contextmanager
def _film(folder: Path, episode: RecordedEpisode, fps: float, wanted: bool) -> Iterator[VideoWriter | None]:
    if not wanted:
        yield None
        return
    name = f"{episode.facts['number']:06d}_env-{episode.env}_episode-{episode.episode}"
    with VideoWriter(folder / name, fps) as writer:
        yield writer


def _replay_session(session: Session, options: argparse.Namespace) -> bool | None:
    """Tell, film and check; False where something differs from the record, None without an episode that is wanted."""
    episodes = list(session.episodes())
    print(summary(session, episodes))
    chosen = [
        episode
        for episode in episodes
        if options.episode in (None, episode.episode) and options.env in (None, episode.env)
    ]
    right = _replay_episodes(session, chosen, options) if chosen else None
    if not chosen:
        print(f"  {_none_in('this session', options)}")
    for problem in session.problems:
        print(f"  {problem}", file=sys.stderr)
    return right


def _none_in(place: object, options: argparse.Namespace) -> str:
    """That a place has no episode, or none of those that are wanted."""
    wanted = " and ".join(
        f"{what} {value}"
        for what, value in (("episode", options.episode), ("environment", options.env))
        if value is not None
    )
    return f"no {wanted or 'episode'} in {place}"


def _replay_episodes(session: Session, chosen: Sequence[RecordedEpisode], options: argparse.Namespace) -> bool:
    """Film and check; False where something differs from the record."""
    folder, right = options.to or session.folder / "replay", True
    with contextlib.closing(make_envs(session.config.env, 1, not options.no_video)) as envs:
        for episode in chosen:
            print(describe(episode))
            try:
                _to_start(episode, envs)  # before a file is opened
                with _film(folder, episode, options.fps, not options.no_video) as film:
                    replayed = replay(episode, envs, film)
            except CannotReplayError as error:
                print(f"  {error}")
                continue
            text = verdict(episode, replayed)
            right &= "DIFFERS" not in text
            print(f"  {text}")
            if replayed.video is not None:
                print(f"  video: {replayed.video}")
    return right


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay sessions; exit code 1 where a replay differs from the record or cannot be made, or none has an episode."""
    parser = argparse.ArgumentParser(prog="python -m harl.hitl.replay", description=__doc__)
    parser.add_argument("folder", type=Path, help="a session, a run, its people/, or a folder with several runs")
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument("--env", type=int, help="only this environment")
    parser.add_argument("--no-video", action="store_true", help="tell and check alone")
    parser.add_argument("--to", type=Path, metavar="DIR", help="where videos go (default: replay/ in the session)")
    parser.add_argument("--fps", type=float, default=10.0, help="pictures a second")
    options = parser.parse_args(arguments)
    try:
        done = [_replay_session(session, options) for session in find_sessions(options.folder)]
        right = [each for each in done if each is not None]
        if not right:
            raise RecordingError(_none_in(options.folder, options))
    except (ConfigError, StorageError, EnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
