"""Videos of episodes, written frame by frame: MP4 where PyAV can encode it, else GIF. No display is needed."""

from __future__ import annotations

import importlib
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from harl.experiment.files import StorageError, storage_errors
from harl.experiment.gif import GifStream

Encoder = Literal["mp4", "gif"]


class VideoError(StorageError):
    """A video cannot be made; the message is for the user as it stands."""


class _FrameStream(Protocol):
    def add(self, frame: NDArray[np.uint8]) -> None: ...

    def close(self) -> None: ...


def available_encoder() -> Encoder:
    """What videos will be written as on this machine; ask before the work that is to be recorded starts."""
    try:
        importlib.import_module("av")
        importlib.import_module("av.codec").Codec("libx264", "w")
    except (ImportError, ValueError):  # PyAV is missing, or was built without this encoder
        return "gif"
    return "mp4"


class VideoWriter:
    """Writes one video. The file appears, whole, under `path` when the block ends.

    `path` gets the suffix of the encoder, in place of `.mp4` or `.gif`. Memory holds one frame and the encoder's own,
    however long the video. When the block raises, the frames that came before are kept.
    """

    path: Path
    """Where the video will be, with the suffix that says what it is."""
    frames: int
    """Frames added so far."""

    def __init__(self, path: str | Path, fps: float, encoder: Encoder | None = None) -> None:
        if not fps > 0:
            raise VideoError(f"a video of {fps} frames per second; allowed: more than 0")
        self._encoder = encoder or available_encoder()
        self._fps = Fraction(fps).limit_denominator(1000)
        whole = Path(path).absolute()
        stem = whole.stem if whole.suffix in (".mp4", ".gif") else whole.name
        self.path = whole.with_name(f"{stem}.{self._encoder}")
        self.frames = 0
        self._temporary = self.path.with_name(f".{self.path.name}.tmp")
        self._shape: tuple[int, ...] = ()
        self._file: BinaryIO | None = None
        self._stream: _FrameStream | None = None

    def add(self, frame: NDArray[np.uint8] | None) -> None:
        """Append a picture (H, W, 3) uint8; all of one video have the same size."""
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise VideoError(f"frame {self.frames} of {self.path.name} is {found}; expected uint8 (height, width, 3)")
        with storage_errors("write", self.path):
            if self._stream is None:
                self._open(frame)
            if frame.shape != self._shape:
                raise VideoError(
                    f"frame {self.frames} of {self.path.name} is {frame.shape[:2]}, those before {self._shape[:2]}"
                )
            assert self._stream is not None
            self._stream.add(frame)
        self.frames += 1

    def close(self) -> None:
        """Finish the file; a video without frames is an error. May be called twice."""
        if self._file is not None:
            self._finish()
        if not self.frames:
            raise VideoError(f"{self.path} was not written: no frame came")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._file is not None:
            self._finish()

    def _open(self, frame: NDArray[np.uint8]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._temporary.open("wb")
        self._shape = frame.shape
        height, width = frame.shape[:2]
        kind = _Mp4Stream if self._encoder == "mp4" else GifStream
        self._stream = kind(self._file, width, height, self._fps)

    def _finish(self) -> None:
        assert self._file is not None
        assert self._stream is not None
        with storage_errors("write", self.path), self._file:
            self._stream.close()
        self._temporary.replace(self.path)
        self._file = self._stream = None


class _Mp4Stream:
    """H.264 in MP4, 4:2:0, as browsers and players take it; an odd width or height gets one more row of pixels."""

    def __init__(self, file: BinaryIO, width: int, height: int, fps: Fraction) -> None:
        self._av = importlib.import_module("av")
        self._container: Any = self._av.open(file, mode="w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=fps, options={"crf": "20", "preset": "veryfast"})
        self._stream.width, self._stream.height = width + width % 2, height + height % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1  # the cores belong to the training
        self._padding = ((0, height % 2), (0, width % 2), (0, 0))

    def add(self, frame: NDArray[np.uint8]) -> None:
        even = np.pad(frame, self._padding, mode="edge")
        self._container.mux(self._stream.encode(self._av.VideoFrame.from_ndarray(even, format="rgb24")))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()
