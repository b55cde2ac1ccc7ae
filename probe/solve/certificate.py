"""When a solve may stop, for every optimiser: a bound of what is left, and a sense of being stuck.

f is l2-strongly convex in W, and |df/dW|² / (2 l2) is at once the duality gap of the natural dual point: an
upper bound of f - f*, not a guess (the bias, which is free, adds its Newton decrement). A problem is solved
when the bound is below tol x f; on real features it is 2 to 5 times the true excess.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probe.solve.objective import Point

MEASURABLE = {torch.float32: 1e-7, torch.float64: 1e-13}  # relative fall of f that rounding cannot explain

# The Hessian's diagonal. A class that no sample is unsure about has curvature 0, and would get endless steps.
LEAST_CURVATURE = 1e-4  # of the mean over classes
TINY = 1e-30  # and if all classes are flat: the diagonal is divided by


@dataclass
class Outcome:
    """One solved problem."""

    theta: Tensor  # K x (r + 1)
    value: float
    gap: float  # certified: value - optimum is not more
    iterations: int  # each with one product of the features forward and one backward
    status: str  # "converged" | "stalled" (no measurable progress left) | "iterations" (limit, or given up)

    @classmethod
    def of(cls, point: Point, which: int, left: Tensor, iterations: int, status: str) -> Outcome:
        """One of the B problems of a point, whose gaps are `left`."""
        value = number(point.value[which])
        return cls(point.theta[which], value, number(left[which]), iterations, status)


class Progress:
    """Counts iterations in which neither the value fell by more than rounding could explain nor the gap by
    half: near the optimum the gap still tells progress when the value cannot."""

    def __init__(self, l2: Tensor, dtype: torch.dtype, stall: int) -> None:
        self.value = torch.full_like(l2, torch.inf)
        self.gap, self.idle = self.value, torch.zeros_like(self.value)
        self.rate, self.stall = MEASURABLE[dtype], stall

    def note(self, value: Tensor, gap: Tensor) -> Tensor:
        """Which of the problems are stuck."""
        lower, closer = value < self.value * (1 - self.rate), gap < self.gap / 2
        self.value = torch.where(lower, value, self.value)
        self.gap = torch.where(closer, gap, self.gap)
        self.idle = torch.where(lower | closer, 0.0, self.idle + 1)
        return self.idle >= self.stall

    def keep(self, which: Tensor) -> None:
        """Only some of the problems."""
        self.value, self.gap, self.idle = self.value[which], self.gap[which], self.idle[which]


def holds(condition: Tensor) -> bool:
    """The only place besides `status` where numbers decide what is done next."""
    return bool(condition)


def number(value: Tensor) -> float:
    """The only place where they leave the device."""
    return float(value)


def status(solved: Tensor, stalled: Tensor, last: bool) -> list[str]:
    """Of each problem: why it ends here, or "" where it goes on."""
    words = []
    for ok, stuck in zip(solved.tolist(), stalled.tolist(), strict=True):
        words.append("converged" if ok else "stalled" if stuck else "iterations" if last else "")
    return words


def hessian_diagonal(curvature: Tensor, spectrum: Tensor, l2: Tensor) -> Tensor:
    """The Hessian's diagonal, as `probe.solve.basis` models it (B x K x (r + 1)), of the classes' curvature
    (B x K) and the variances of r directions and the bias; no class is flat."""
    bends = torch.maximum(curvature, LEAST_CURVATURE * curvature.mean(dim=1, keepdim=True))
    diagonal = bends.clamp_min(TINY).to(spectrum).unsqueeze(-1) * spectrum
    diagonal[..., :-1] += l2.to(spectrum).view(-1, 1, 1)
    return diagonal


def gap(point: Point, diagonal: Tensor, l2: Tensor) -> Tensor:
    """The bound of f - f*, of B problems."""
    g = point.gradient.double()
    bias = g[..., -1].square() / diagonal[..., -1]
    return (g[..., :-1].square().sum(dim=(1, 2)) / l2 + bias.sum(dim=1)) / 2


def sum_zero(direction: Tensor) -> Tensor:
    """With sum 0 over classes (the last dimension but one).

    Adding one vector to every class changes no probability: only the penalty bends that way, and a
    preconditioner cannot know. Steps that stay in the sum-zero space, where gradients lie and the optimum is,
    never see it.
    """
    return direction - direction.mean(dim=-2, keepdim=True)
