"""Every random number of a run comes from one seed, through a stream of its own for each purpose.

Streams are independent: how much one of them is used, or how many environments there are, changes no other.
"""

from __future__ import annotations

import random
import secrets
from enum import IntEnum
from typing import Any

import numpy as np

LARGEST_SEED = 2**32 - 1
"""Seeds are kept to 32 bits, the range that every library that a user's environment may call accepts."""


class SeedError(ValueError):
    """The seed is not one that a run can start from."""


class Purpose(IntEnum):
    """What a random stream is for. The numbers are spawn keys: never change or reuse one, add new ones at the end."""

    TRAIN_ENVS = 0
    EVAL_ENVS = 1
    RENDER_ENVS = 2
    MODEL = 3
    """Initial weights."""
    SAMPLING = 4
    """Actions drawn from a policy."""
    MINIBATCH = 5
    """Order of samples within an update."""
    GLOBALS = 6
    """The global generators, for environments that use them."""
    AGENT_ORDER = 7
    """Order in which a sequential update visits the agents."""
    REPLAY = 8
    """Draws from the replay buffer."""
    EXPLORATION = 9
    """Noise on top of a policy's actions."""
    WARMUP = 10
    """Random actions before learning starts."""
    FINAL_EVAL_ENVS = 11
    """The evaluation of the best checkpoint when training is over."""
    DEMONSTRATIONS = 12
    """Draws from what people did."""


_ENVIRONMENT, _INTEGER, _GENERATOR = range(3)


class SeedStreams:
    """The random streams of a run.

    Raises `SeedError` unless `seed` is an integer from 0 to 2**32 - 1.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise SeedError(f"seed={seed!r} is not a whole number; allowed: 0 to {LARGEST_SEED}, or null to draw one")
        if not 0 <= seed <= LARGEST_SEED:
            raise SeedError(f"seed={seed} is out of range; allowed: 0 to {LARGEST_SEED}, or null to draw one")
        self.seed = int(seed)

    def env_seeds(self, purpose: Purpose, n: int, start: int = 0) -> list[int]:
        """Seeds of `n` environments, 0 to 2**63 - 1; the seed of environment i is the same for every `n`.

        `start` tells later starts of the same environments apart, as when a run goes on after so many steps with
        environments that could not be saved: they do not play their first episodes again.
        """
        later = (start,) if start else ()
        return [_whole_number(self._sequence(purpose, _ENVIRONMENT, i, *later)) for i in range(n)]

    def integer(self, purpose: Purpose) -> int:
        """One seed, 0 to 2**63 - 1, as for `torch.Generator.manual_seed`."""
        return _whole_number(self._sequence(purpose, _INTEGER))

    def numpy_generator(self, purpose: Purpose) -> np.random.Generator:
        """A generator at the beginning of the purpose's stream, always the same one."""
        return np.random.Generator(np.random.PCG64(self._sequence(purpose, _GENERATOR)))

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=key)


def _whole_number(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


def draw_seed() -> int:
    """A seed from the operating system, for a run that was given none; record it, and the run can be repeated."""
    return secrets.randbelow(LARGEST_SEED + 1)


def seed_everything(streams: SeedStreams) -> None:
    """Seed the global generators of Python, NumPy and torch, for user environments and networks that draw from them."""
    import torch

    seed = streams.integer(Purpose.GLOBALS)
    random.seed(seed)
    np.random.seed(seed & LARGEST_SEED)
    torch.manual_seed(seed)


def global_rng_state() -> dict[str, Any]:
    """Where the global generators of Python, NumPy and torch (with every CUDA device in use) stand.

    Plain numbers, lists and tensors, which `torch.load(weights_only=True)` reads.
    """
    import torch

    version, words, gauss_next = random.getstate()
    cuda_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": list(words), "gauss_next": gauss_next},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys, np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda_in_use else [],
    }


def set_global_rng_state(state: dict[str, Any]) -> None:
    """Put the global generators back to where `global_rng_state` found them.

    CUDA generators are restored as far as this machine has the devices.
    """
    import torch

    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss_next"]))
    keys = legacy["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state((legacy["name"], keys, legacy["position"], legacy["has_gauss"], legacy["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        for device, generator in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
            torch.cuda.set_rng_state(generator.cpu(), device)
