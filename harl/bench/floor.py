"""The matrix products of a piece of work, and the time that they take alone: the floor of `harl.bench`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LEFT = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""The operations of torch that a product ends in, and where its left factor stands among their arguments."""


class Factor(NamedTuple):
    """How a factor lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Factor:
        """That of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()))

    def filled(self) -> Tensor:
        """Ones that lie so; whatever the strides leave free is never read."""
        return torch.empty_strided(self.shape, self.strides).fill_(1.0)


class Product(NamedTuple):
    """One product of two matrices, of two stacks of them, or of a matrix and a vector."""

    left: Factor
    right: Factor

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        *rows, inner = self.left.shape
        columns = self.right.shape[-1] if len(self.right.shape) > 1 else 1
        return 2 * torch.Size(rows).numel() * inner * columns


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every matrix product that torch makes meanwhile in this thread, forward and backward.

    Convolutions are no such products.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at = LEFT.get(func.overloadpacket.__name__)
        if at is not None:
            self.made.append(Product(Factor.of(args[at]), Factor.of(args[at + 1])))
        return func(*args, **(kwargs or {}))


def products_of(work: Callable[[], Any]) -> list[Product]:
    """The matrix products of this work, in their order."""
    products = Products()
    with products:
        work()
    return products.made


def operations(products: Sequence[Product]) -> int:
    """Multiplications and additions of all of them."""
    return sum(product.operations for product in products)


def again(products: Sequence[Product]) -> Callable[[], None]:
    """A function that makes these products and does nothing else.

    Factors of one shape are one tensor, and results are written where the last one of their shape stood: nothing is
    allocated, and what fits is in the cache. So it is what the work could not be faster than, with these products.
    """
    factors: dict[Factor, Tensor] = {}
    results: dict[tuple[int, ...], Tensor] = {}
    steps: list[tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]] = []
    for product in products:
        left, right = (factors.setdefault(factor, factor.filled()) for factor in product)
        shape = (*left.shape[:-1], *right.shape[left.dim() - 1 :])
        make = torch.bmm if right.dim() == 3 else torch.mm if right.dim() == 2 else torch.mv
        steps.append((make, left, right, results.setdefault(shape, torch.empty(shape))))

    def multiply() -> None:
        for make, left, right, result in steps:
            make(left, right, out=result)

    return multiply


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long it takes, by this clock."""
    started = clock()
    work()
    return clock() - started


ORIGINAL_FLOOR_US = 26.0
"""Microseconds per environment step of `happo_on_spread`, one thread, where the original was measured."""


def happo_on_spread(rows: int) -> None:
    """Products of an update of HAPPO on simple_spread, discrete, 128 x 128, as they come: three actors of five epochs
    and two looks for the factor M, and a critic of five epochs."""
    for widths, epochs, looks in [([18, 128, 128, 5], 5, 2)] * 3 + [([54, 128, 128, 1], 5, 0)]:
        weights = [torch.ones(after, before) for before, after in itertools.pairwise(widths)]
        inputs = torch.ones(rows, widths[0])
        for i in range(epochs + looks):
            layers = [inputs]
            for weight in weights:
                layers.append(layers[-1] @ weight.t())
            gradient = layers[-1]
            for k in reversed(range(len(weights))) if i < epochs else ():
                gradient.t() @ layers[k]
                gradient = gradient @ weights[k] if k else gradient


def machine_speed(rows: int = 4000) -> float:
    """How fast this machine multiplies matrices, as a multiple of the one on which the original was measured.

    By the time of the thread alone, which does not count while other programs have the core.
    """
    best = min(seconds(lambda: happo_on_spread(rows), time.thread_time) for _ in range(5))
    return ORIGINAL_FLOOR_US / 1e6 * rows / best
