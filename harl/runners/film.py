"""Videos of episodes, one file each."""

from __future__ import annotations

from pathlib import Path

from harl.envs.api import VectorEnv
from harl.experiment.video import VideoWriter


class Film:
    """Films the episodes of environment 0: a picture of what the agents see before each of their actions.

    An episode of T steps gives T pictures; the state after the last action is not among them, since environments
    start the next episode within that step.

    Args:
        envs: what to film.
        folder: where the files go, as `<stem>_episode-<k>.<ending>`.
        fps: pictures per second.
    """

    def __init__(self, envs: VectorEnv, folder: Path, stem: str, fps: int) -> None:
        self.envs, self.folder, self.stem, self.fps = envs, folder, stem, fps
        self.paths: list[Path] = []
        """Finished videos."""
        self._writer: VideoWriter | None = None
        self._shown = (-1, 0)

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *error: object) -> None:
        self._finish()

    def picture(self, episode: int, attempt: int = 0) -> None:
        """Take a picture for this episode; the first one of another episode starts a new file.

        Another attempt takes the file of the one before, which somebody has discarded.
        """
        frame = self.envs.render(0)
        if (episode, attempt) != self._shown:
            self._finish()
            self._shown = (episode, attempt)
            self._writer = VideoWriter(self.folder / f"{self.stem}_episode-{episode}", self.fps)
        assert self._writer is not None
        self._writer.add(frame)

    def _finish(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
            if writer.path not in self.paths:
                self.paths.append(writer.path)
