"""Sharpness-aware minimisation: descend along the gradient at the worst point nearby (Foret et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probe.methods.base import Method
from probe.train.parallel import dtensor

if TYPE_CHECKING:
    from probe.train.step import Window


class SAM(Method):
    """min_w max_{|e| <= rho} L(w + e), with the inner maximum to first order: e = rho g / |g|.

    One norm over all parameters. Both gradients see the same batch, views and dropout; batch-norm and class
    statistics move with the first one only. Adaptive: the ball is scaled by |w|, e = rho w^2 g / |w g|.
    """

    def __init__(self, loss: Any, *, rho: float, adaptive: bool) -> None:
        super().__init__(loss)
        self.rho, self.adaptive = rho, adaptive

    def step(self, window: Window) -> float:
        loss = window.gradients()
        # Up along a gradient that is not finite there is no point to go to; `update` says what it is.
        if self.rho > 0 and math.isfinite(window.engine.norm()):
            parameters: list[Tensor] = [p for p in window.parameters if p.grad is not None]
            with self.moved(parameters), window.statistics_kept():
                window.gradients()
        window.update()
        return loss

    @contextmanager
    def moved(self, parameters: list[Tensor]) -> Iterator[None]:
        """Inside the block the weights are at the worst point nearby; after it where they were, whatever
        happened there."""
        here = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, self.perturbation(parameters), alpha=1)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, here, strict=True):
                    parameter.copy_(value)

    @torch.no_grad()
    def perturbation(self, parameters: list[Tensor]) -> list[Tensor]:
        """e for every parameter; its norm over all of them is rho, whatever the scale of the loss."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        scales = [p.abs() for p in parameters] if self.adaptive else None
        scaled = gradients if scales is None else torch._foreach_mul(gradients, scales)
        factor = self.rho / (dtensor.whole(torch.nn.utils.get_total_norm(scaled)) + 1e-12)
        steps = scaled if scales is None else torch._foreach_mul(scaled, scales)
        return [step * factor for step in steps]
