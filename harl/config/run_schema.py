"""Keys that concern a run as a whole, and those of `harl.render`."""

from __future__ import annotations

from dataclasses import dataclass, field

from harl.config.fields import COUNT, STEPS, TEXT, limits
from harl.config.hitl_schema import HitlConfig

LARGEST_SEED = 2**32 - 1
"""Above it, generators of older libraries overflow."""

_SEED = limits(at_least=0, at_most=LARGEST_SEED)
_THREADS = limits(at_least=1, at_most=1024)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where the arithmetic is done."""

    name: str = field(metadata=limits(pattern=r"auto|cpu|cuda(:\d+)?", allowed="one of auto, cpu, cuda, cuda:<index>"))
    """auto (a GPU where there is one), cpu, cuda or cuda:<index>."""
    torch_threads: int = field(metadata=_THREADS)
    """CPU threads of torch during collection and evaluation."""
    update_threads: int | None = field(metadata=_THREADS)
    """CPU threads of torch during the update; None = torch_threads."""
    deterministic: bool
    """Only deterministic kernels."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept of the weights."""

    interval: int = field(metadata=STEPS)
    """Environment steps between two checkpoints."""
    keep_last: int = field(metadata=COUNT)
    """Number of newest checkpoints kept besides the best."""


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """How a run reports."""

    tensorboard: bool
    """Write TensorBoard files."""
    progress: str = field(metadata=limits(choices=("auto", "bar", "plain", "off")))
    """What the terminal shows."""


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """What concerns the run as a whole."""

    seed: int | None = field(metadata=_SEED)
    """Root of every random stream; None = one is drawn and recorded."""
    exp_name: str = field(metadata=TEXT)
    """Tells runs of one task and algorithm apart."""
    output_dir: str = field(metadata=TEXT)
    """Folder that holds run folders."""
    resume: str | None = field(metadata=TEXT)
    """Run folder to continue."""
    init_from: str | None = field(metadata=TEXT)
    """Run folder or checkpoint whose weights a new run starts from."""
    device: DeviceConfig
    """Where the arithmetic is done."""
    checkpoint: CheckpointConfig
    """What is kept of the weights."""
    logger: LoggerConfig
    """How the run reports."""
    hitl: HitlConfig
    """Whether and how people take part; of the class that its name chooses."""


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """What `python -m harl.render` shows."""

    checkpoint: str = field(
        metadata=limits(pattern=r"best|latest|\d+", allowed="one of best, latest, <environment steps of a checkpoint>")
    )
    """best, latest, or the environment steps of a checkpoint."""
    episodes: int = field(metadata=COUNT)
    """Number of episodes."""
    video: bool
    """Write a video."""
    deterministic: bool
    """Most probable actions, or samples."""
    fps: int = field(metadata=limits(at_least=1, at_most=240))
    """Pictures per second of the video."""
    seed: int | None = field(metadata=_SEED)
    """Root of the episodes' random streams; None = that of the run."""


@dataclass(frozen=True, kw_only=True)
class RenderConfig:
    """Configuration of `python -m harl.render`."""

    run: str = field(metadata=TEXT)
    """Run folder whose policy is shown."""
    render: RenderOptions
    """What is shown."""
    hitl: HitlConfig
    """Whether and how people take part; of the class that its name chooses."""
