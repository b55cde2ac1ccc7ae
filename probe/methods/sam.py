"""Sharpness-aware minimisation: descend along the gradient at the worst point nearby (Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from probe.losses.base import Loss
from probe.methods.base import Method
from probe.methods.protocols import StepLike, TotalNorm


class SAM(Method):
    """min_w max_{|e| <= rho} L(w + e), with the inner maximum to first order: e = rho g / |g|.

    One norm over all parameters. Both gradients see the same batch, views and dropout; batch-norm and class
    statistics move with the first one only. Adaptive: the ball is scaled by |w|, e = rho w^2 g / |w g|.
    """

    def __init__(self, loss: Loss, *, rho: float, adaptive: bool) -> None:
        super().__init__(loss)
        self.rho, self.adaptive = rho, adaptive

    def step(self, step: StepLike) -> float:
        loss = step.gradients()
        # A gradient that is not finite points nowhere; `update` then reports it.
        if self.rho > 0 and step.finite_gradients():
            parameters = [p for p in step.parameters if p.grad is not None]
            with self.perturbed(parameters, step.total_norm), step.frozen_statistics():
                step.gradients()
        step.update()
        return loss

    @contextmanager
    def perturbed(self, parameters: Sequence[Tensor], total_norm: TotalNorm) -> Iterator[None]:
        """Inside the block the weights are at the worst point nearby; afterwards they are back, whatever
        happened there."""
        here = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(list(parameters), self.perturbation(parameters, total_norm), alpha=1)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, here, strict=True):
                    parameter.copy_(value)

    @torch.no_grad()
    def perturbation(
        self, parameters: Sequence[Tensor], total_norm: TotalNorm = torch.nn.utils.get_total_norm
    ) -> list[Tensor]:
        """e for every parameter; its norm over all of them is rho, whatever the scale of the loss."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        scales = [p.abs() for p in parameters] if self.adaptive else None
        scaled = gradients if scales is None else torch._foreach_mul(gradients, scales)
        factor = self.rho / (total_norm(scaled) + 1e-12)
        steps = scaled if scales is None else torch._foreach_mul(scaled, scales)
        return [step * factor for step in steps]
