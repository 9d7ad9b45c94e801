"""Where networks live and how many threads compute."""

from __future__ import annotations

import torch

from harl.config import ConfigError, DeviceConfig


def choose_device(config: DeviceConfig) -> torch.device:
    """The device that `device.name` asks for; `auto` is the first GPU where there is one.

    Raises:
        ConfigError: a GPU was asked for that is not there.
    """
    name = config.name
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            have = f"cuda:0 to cuda:{count - 1}" if count else "no GPU that torch can use"
            raise ConfigError([f"device.name={config.name}: this machine has {have}; allowed: auto, cpu"])
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # That mode also fills memory that is about to be written anyway, a tenth of the time of an update.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # A matrix product on denormal numbers takes up to 190 times as long; flushing changes only what is below 1e-38.
    torch.set_flush_denormal(True)
    return device


class Threads:
    """Threads of matrix products: `torch_threads` while acting, `update_threads` during the update.

    Small products of acting lose by a second thread; the large ones of an update gain while nothing else runs on the
    cores. The number is set, never guessed, since sums differ in their last bits with it.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.acting = config.torch_threads
        self.updating = config.update_threads or config.torch_threads
        self.for_acting()

    def for_acting(self) -> None:
        """Use the number for collecting steps."""
        torch.set_num_threads(self.acting)

    def for_update(self) -> None:
        """Use the number for learning."""
        torch.set_num_threads(self.updating)
