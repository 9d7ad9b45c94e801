"""Videos: right frames, little memory, and an encoder that is known before the work starts."""

from __future__ import annotations

import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from PIL import Image

from harl.experiment.files import StorageError
from harl.experiment.video import Encoder, VideoError, VideoWriter, available_encoder

av = pytest.importorskip("av", reason="PyAV is an optional extra; without it only GIFs are written")
ENCODERS: list[Encoder] = ["mp4", "gif"]


def picture(grey: int, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """One shade of grey with a red corner."""
    frame = np.full((height, width, 3), grey, np.uint8)
    frame[: height // 4, : width // 4] = (255, 0, 0)
    return frame


def decoded(path: Path) -> list[NDArray[np.uint8]]:
    if path.suffix == ".mp4":
        with av.open(str(path)) as container:
            return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with Image.open(path) as image:
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
        return frames


@pytest.mark.parametrize("encoder", ENCODERS)
def test_frames_come_back_in_order(tmp_path: Path, encoder: Encoder) -> None:
    with VideoWriter(tmp_path / "videos" / "episode", 10, encoder) as video:
        for number in range(20):
            video.add(picture(10 * number))
    assert video.path == tmp_path / "videos" / f"episode.{encoder}"
    frames = decoded(video.path)
    assert len(frames) == video.frames == 20
    for number, frame in enumerate(frames):
        assert frame.shape == (64, 96, 3)
        assert abs(float(frame[40:, 40:].mean()) - 10 * number) < 3
        assert frame[4, 4, 0] > 200
        assert frame[4, 4, 1] < 60
    assert sorted(file.name for file in video.path.parent.iterdir()) == [video.path.name]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_rnd_07_three_episodes_are_three_files_of_26_frames(tmp_path: Path, encoder: Encoder) -> None:
    """Reset and 25 steps; each episode has its own shade, so a frame of the next one would show."""
    for episode in range(3):
        with VideoWriter(tmp_path / f"episode-{episode}", 10, encoder) as video:
            for _ in range(26):
                video.add(picture(80 * episode))
    for episode in range(3):
        frames = decoded(tmp_path / f"episode-{episode}.{encoder}")
        assert len(frames) == 26
        assert all(abs(float(frame[40:, 40:].mean()) - 80 * episode) < 3 for frame in frames)


@pytest.mark.parametrize("fps", [10, 12.5, 30])
def test_speed(tmp_path: Path, fps: float) -> None:
    for encoder in ENCODERS:
        with VideoWriter(tmp_path / "x", fps, encoder) as video:
            for _ in range(30):
                video.add(picture(0))
    with av.open(str(tmp_path / "x.mp4")) as container:
        assert float(container.streams.video[0].average_rate) == fps
    with Image.open(tmp_path / "x.gif") as image:
        milliseconds = 0
        for number in range(image.n_frames):
            image.seek(number)
            milliseconds += image.info["duration"]
    assert abs(milliseconds - 30_000 / fps) <= 10


@pytest.mark.parametrize(("given", "name"), [("a.mp4", "a.gif"), ("a.gif", "a.gif"), ("step-1.5_a", "step-1.5_a.gif")])
def test_names_keep_their_dots(tmp_path: Path, given: str, name: str) -> None:
    assert VideoWriter(tmp_path / given, 10, "gif").path == tmp_path / name


def test_odd_sizes(tmp_path: Path) -> None:
    for encoder, shape in {"mp4": (52, 70, 3), "gif": (51, 69, 3)}.items():
        with VideoWriter(tmp_path / "odd", 5, encoder) as video:  # type: ignore[arg-type]
            video.add(picture(200, 51, 69))
        frame = decoded(video.path)[0]
        assert frame.shape == shape
        assert abs(float(frame[-1, -1].mean()) - 200) < 3


@pytest.mark.parametrize("encoder", ENCODERS)
def test_mem_03_memory_does_not_grow_with_the_video(tmp_path: Path, encoder: Encoder) -> None:
    """200 frames of 0.4 MB each."""
    process = psutil.Process(os.getpid())
    frame = picture(100, 384, 384)
    with VideoWriter(tmp_path / "long", 30, encoder) as video:
        for number in range(50):
            video.add(np.roll(frame, number, axis=0))
        resident = process.memory_info().rss
        tracemalloc.start()
        try:
            for number in range(150):
                video.add(np.roll(frame, number, axis=0))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        grown = process.memory_info().rss - resident
    assert peak < 12 * frame.nbytes
    assert grown < 40 * frame.nbytes
    assert video.frames == 200


def test_rnd_06_without_an_encoder_a_gif_is_announced_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert available_encoder() == "mp4"
    monkeypatch.setitem(sys.modules, "av", None)
    assert available_encoder() == "gif"
    with VideoWriter(tmp_path / "x.mp4", 10) as video:
        assert video.path.name == "x.gif"
        video.add(picture(0))
    assert len(decoded(tmp_path / "x.gif")) == 1


def test_rnd_02_a_video_without_pictures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="no frame came"), VideoWriter(tmp_path / "x", 10):
        pass
    with (
        pytest.raises(VideoError, match=r"frame 0 of x\.mp4 is NoneType; expected uint8"),
        VideoWriter(tmp_path / "x", 10) as video,
    ):
        video.add(None)
    assert list(tmp_path.iterdir()) == []


def test_frames_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "x", 10) as video:
        video.add(picture(0))
        with pytest.raises(VideoError, match=r"frame 1 of x.mp4 is \(32, 96\), those before \(64, 96\)"):
            video.add(picture(0, height=32))
        with pytest.raises(VideoError, match=r"frame 1 of x.mp4 is float64 \(4, 4\); expected"):
            video.add(np.zeros((4, 4)))  # type: ignore[arg-type]
    with pytest.raises(VideoError, match="0 frames per second"):
        VideoWriter(tmp_path / "x", 0)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_prc_08_an_interrupted_video_can_be_watched(tmp_path: Path, encoder: Encoder) -> None:
    def interrupted() -> None:
        with VideoWriter(tmp_path / "x", 10, encoder) as video:
            for _ in range(5):
                video.add(picture(50))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(decoded(tmp_path / f"x.{encoder}")) == 5


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "videos").write_text("a file")
    with (
        pytest.raises(StorageError, match=r"cannot write .*videos"),
        VideoWriter(tmp_path / "videos" / "x", 10) as video,
    ):
        video.add(picture(0))
