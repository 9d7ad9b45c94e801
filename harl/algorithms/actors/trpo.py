"""The trust-region step of HATRPO."""

from __future__ import annotations

import math
import warnings
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from harl.algorithms.actors.on_policy import Lesson, OnPolicyActor
from harl.algorithms.base import FlatOptimizer, Metrics, NonFiniteError, pieces_of
from harl.algorithms.natural_gradient import FisherProduct, conjugate_gradient
from harl.buffers.rollout import ActorData
from harl.config import TRPOConfig
from harl.models.distributions import Distribution

DAMPING: Final = 0.1
"""Added to the diagonal of the Fisher information."""
ITERATIONS: Final = 10
"""The most Fisher products that are made to find the direction of a step."""
RESIDUAL: Final = 1e-10
"""Squared norm of the residual at which the direction is good enough."""
VANISHING: Final = 1e-8
"""Norm of a gradient that rounding alone may leave: advantages are of size 1, and float32 has seven digits."""


class SkippedUpdateWarning(UserWarning):
    """There was no direction to step in; the policy was left as it was."""


class Outcome(NamedTuple):
    """What a policy is like on the rollout."""

    surrogate: float
    """Mean of ρ M Â."""
    kl: float
    """Mean KL(π_old ‖ π), nats."""
    entropy: float
    """Mean entropy, nats."""
    ratio: float
    """Mean of ρ over all rows."""

    def report(self, improvement: float, expected: float, fraction: float) -> dict[str, float]:
        """As numbers for the log."""
        return {
            "kl": self.kl,
            "dist_entropy": self.entropy,
            "loss_improve": improvement,
            "expected_improve": expected,
            "ratio": self.ratio,
            "step_fraction": fraction,
        }


class TRPO(OnPolicyActor):
    """Trust-region policy optimisation of one agent (Schulman et al. 2015; Kuba et al. 2022, HATRPO).

    Maximises the mean of ρ M Â, one step a rollout: along s with (F + 0.1 I) s = g, g being the gradient and F the
    Fisher information, so long that the quadratic model of the mean KL(π_old ‖ π) is `kl_threshold`. The step is cut
    back by `backtrack_coeff` until the true KL is below the threshold and the true gain is positive and more than
    `accept_ratio` of what the gradient promises; after `ls_step` attempts the policy stays what it was, bit for bit.

    A lesson from people is learned after that, outside the trust region: `critic_epoch` steps of Adam on the imitation
    loss, at β times `critic_lr`, since there is no learning rate of the actor's own.
    """

    config: TRPOConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._imitation: FlatOptimizer | None = None
        """Made with the first lesson."""

    _said = False
    """Whether a skipped update has been reported."""

    def train(self, data: ActorData, lesson: Lesson | None = None) -> dict[str, float]:
        """One step on the whole rollout, and with memory on its sequences as they are.

        Returns:
            kl, dist_entropy and ratio of the policy that it leaves; loss_improve and expected_improve of the step
            taken, and step_fraction, its length as a part of the full one: 0 where there was none; all of these only
            where the agent acted in this rollout. With a lesson also bc_loss, the mean over its steps.

        Raises:
            NonFiniteError: the gradient or the curvature is NaN or infinite.
        """
        found = self._improve(data) if bool((data.weights > 0).any()) else {}
        return found if lesson is None else {**found, **self._learn(lesson)}

    def _improve(self, data: ActorData) -> dict[str, float]:
        old = self._distributions(data)
        before = self._judge(data, old)
        self.gradient.zero_()
        self.add_gradient(data)
        ascent = -self.gradient.double()
        step = self._full_step(data, ascent)
        if step is None:
            return before.report(0.0, 0.0, 0.0)
        return self._search(data, old, before, step, float(ascent @ step))

    def _learn(self, lesson: Lesson) -> dict[str, float]:
        config, metrics = self.config, Metrics()
        optimizer = self._imitator()
        optimizer.set_lr_fraction(lesson.weight)
        for _ in range(config.critic_epoch):
            optimizer.zero_grad()
            metrics.add(bc_loss=self.imitate(lesson.draw(), 1.0))
            optimizer.step()
        return metrics.means(f"actor of {self.name}")

    def _imitator(self) -> FlatOptimizer:
        if self._imitation is None:
            config = self.config
            limit = config.max_grad_norm if config.use_max_grad_norm else None
            self._imitation = FlatOptimizer(self.vector, config.critic_lr, config.opti_eps, config.weight_decay, limit)
        return self._imitation

    def get_state(self) -> dict[str, Any]:
        state = super().get_state()
        return state if self._imitation is None else {**state, "imitation": self._imitation.adam.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if "imitation" in state:
            self._imitator().adam.load_state_dict(state["imitation"])

    def _full_step(self, data: ActorData, ascent: Tensor) -> Tensor | None:
        """The step (P,) float64 to the edge of the trust region in its quadratic model; None where there is none."""
        norm = float(torch.linalg.vector_norm(ascent))
        self._check_finite("gradient", norm)
        if norm <= VANISHING:
            self._say_skipped("the gradient of its surrogate is zero")
            return None
        mask = self.mask(data)
        product = FisherProduct(self.policy, data, mask / mask.sum(), DAMPING)
        direction, curvature = conjugate_gradient(product, ascent, ITERATIONS, RESIDUAL)
        self._check_finite("curvature of the KL", curvature)
        if curvature <= 0.0:
            self._say_skipped("the KL does not grow along the direction of its step")
            return None
        return direction * math.sqrt(2.0 * self.config.kl_threshold / curvature)

    @torch.no_grad()
    def _search(
        self, data: ActorData, old: list[Distribution], before: Outcome, step: Tensor, expected: float
    ) -> dict[str, float]:
        """Take the longest of the steps that holds what it promises, or none."""
        config, start = self.config, self.vector.clone()
        fraction = 1.0
        for _ in range(config.ls_step):
            self.vector.copy_(step * fraction + start)
            found = self._judge(data, old)
            gain, promised = found.surrogate - before.surrogate, expected * fraction
            if found.kl < config.kl_threshold and gain > 0.0 and gain > config.accept_ratio * promised:
                return found.report(gain, promised, fraction)
            fraction *= config.backtrack_coeff
        self.vector.copy_(start)
        return before.report(0.0, 0.0, 0.0)

    @torch.no_grad()
    def _distributions(self, data: ActorData) -> list[Distribution]:
        """The policy's distributions on the rollout, piece by piece."""
        parts = [data.rows(piece) for piece in pieces_of(data.obs)]
        return [self.policy(*part.inputs) for part in parts]

    @torch.no_grad()
    def _judge(self, data: ActorData, old: list[Distribution]) -> Outcome:
        """Compare the policy with the old one; sums in float64, since small differences of them decide."""
        mask = self.mask(data)
        sums = torch.zeros(4, dtype=torch.float64, device=mask.device)
        for piece, was in zip(pieces_of(data.obs), old, strict=True):
            distribution, weighted, ratio = self.terms(data.rows(piece))
            of_rows = torch.cat([weighted.double(), was.kl(distribution), distribution.entropy().double()], dim=-1)
            sums[:3] += (of_rows * mask[piece]).flatten(0, -2).sum(0)
            sums[3] += ratio.sum(dtype=torch.float64)
        sums[:3] /= mask.sum()
        sums[3] /= mask.numel()
        return Outcome(*sums.tolist())

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise NonFiniteError(f"actor of {self.name}: the {what} became NaN or infinite in this update")

    def _say_skipped(self, reason: str) -> None:
        """Say why there is no step, the first time."""
        if not self._said:
            self._said = True
            warnings.warn(
                f"actor of {self.name}: {reason}, so its policy stays as it is in this update; later ones of the kind "
                "show in the log alone, by a step_fraction of 0",
                SkippedUpdateWarning,
                stacklevel=2,
            )
