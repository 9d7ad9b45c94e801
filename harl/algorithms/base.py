"""What all algorithms share: stepping a flat vector of parameters, minibatches, numbers to report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

CACHE_ROWS = 1024
"""Rows that go through a network at once. The gradient of a minibatch is the sum over such pieces: what it comes to is
the same, and the activations of a thousand rows stay in a core's cache where those of a whole rollout do not."""


CACHE_NUMBERS = 2**20
"""The most numbers that go into a network at once, where a row is an image or a sequence: fewer rows then."""


class NonFiniteError(RuntimeError):
    """A loss or a gradient is NaN or infinite; the message says whose and which."""


class FlatOptimizer:
    """Adam on one network's flat vector of parameters, with a limit on the norm of the gradient.

    Args:
        vector: parameters as one vector whose `.grad` is the flat gradient (`FlatParameters.vector`).
        lr: learning rate.
        eps: Adam's epsilon.
        weight_decay: L2 penalty.
        max_grad_norm: limit, or None for no limit.
    """

    def __init__(
        self, vector: nn.Parameter, lr: float, eps: float, weight_decay: float, max_grad_norm: float | None
    ) -> None:
        self.vector, self.initial_lr, self.max_grad_norm = vector, lr, max_grad_norm
        self.adam = torch.optim.Adam([vector], lr=lr, eps=eps, weight_decay=weight_decay, fused=True)

    @property
    def gradient(self) -> Tensor:
        """The flat gradient (P,)."""
        return cast(Tensor, self.vector.grad)

    def zero_grad(self) -> None:
        """Set the gradient to zero without giving its memory up: the networks' gradients are views of it."""
        self.gradient.zero_()

    @torch.no_grad()
    def step(self) -> Tensor:
        """Clip the gradient, take one step, return the norm before clipping, ()."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self.max_grad_norm is not None:
            self.gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()
        return norm

    def set_lr_fraction(self, fraction: float) -> None:
        """Set the learning rate to a fraction of the configured one."""
        for group in self.adam.param_groups:
            group["lr"] = self.initial_lr * fraction


class Metrics:
    """Means of scalars over the steps of an update, brought to the host once."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, **values: Tensor) -> None:
        """Note one value () of each metric."""
        for name, value in values.items():
            self._values[name].append(value.detach())

    def means(self, owner: str) -> dict[str, float]:
        """Mean of each metric.

        Raises:
            NonFiniteError: a value is NaN or infinite; `owner` says whose it is.
        """
        names = list(self._values)
        if not names:
            return {}
        means = torch.stack([torch.stack(self._values[name]).mean() for name in names]).tolist()
        result = dict(zip(names, means, strict=True))
        bad = [name for name, value in result.items() if value - value != 0]
        if bad:
            raise NonFiniteError(f"{owner}: {', '.join(bad)} became NaN or infinite in this update")
        return result


class Reports:
    """Scalars that several learners report over a bout of updates, brought to the host once, at its end."""

    def __init__(self) -> None:
        self._labels: list[tuple[str, str, str]] = []
        self._values: list[Tensor] = []

    def add(self, owner: str, prefix: str, values: Mapping[str, Tensor]) -> None:
        """Note one value () of each name; `owner` is who reports it in an error, `prefix` in the log."""
        self._labels += [(owner, prefix, name) for name in values]
        self._values += [value.detach() for value in values.values()]

    def drain(self) -> dict[str, float]:
        """Mean of each `<prefix>/<name>`; then start anew.

        Raises:
            NonFiniteError: a value is NaN or infinite; names the first one, since one makes the others so.
        """
        if not self._values:
            return {}
        series: defaultdict[str, list[float]] = defaultdict(list)
        for (owner, prefix, name), value in zip(self._labels, torch.stack(self._values).tolist(), strict=True):
            if not math.isfinite(value):
                raise NonFiniteError(f"{owner}: {name} became NaN or infinite in this update")
            series[f"{prefix}/{name}"].append(value)
        self._labels.clear()
        self._values.clear()
        return {name: sum(values) / len(values) for name, values in series.items()}


def minibatches(rows: int, count: int, generator: torch.Generator, device: torch.device) -> Iterator[Tensor | slice]:
    """Cut the rows into `count` random parts of nearly equal size; no row is left out.

    One part is everything in its own order, since the order does not matter then.
    """
    if count == 1:
        yield slice(0, rows)
        return
    order = torch.randperm(rows, generator=generator).to(device)
    yield from torch.tensor_split(order, count)


def pieces(rows: int, numbers: int = 1) -> Iterator[slice]:
    """Consecutive slices of nearly equal size: at most `CACHE_ROWS` rows of so many numbers, `CACHE_NUMBERS` in all."""
    count = -(-rows // max(1, min(CACHE_ROWS, CACHE_NUMBERS // numbers)))
    for i in range(count):
        yield slice(i * rows // count, (i + 1) * rows // count)


def pieces_of(inputs: Tensor) -> Iterator[slice]:
    """The pieces in which inputs (M, …) of a network go through it."""
    return pieces(len(inputs), math.prod(inputs.shape[1:]))
