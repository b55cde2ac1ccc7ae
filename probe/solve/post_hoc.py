"""Convex problems in the logits of a finished head: one scale for each class, or one for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.row_share import RowShare
from probe.errors import UserError

# (logits n x K, labels n, weights n), block by block: as often as it is called, the same rows
Blocks = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]

TOL = 1e-10  # of the objective: half the squared Newton decrement at which a solution is found
MAX_STEPS = 100
SHORTEST = 1e-8  # part of a Newton step below which rounding, not the step, is what is left
COLDEST, HOTTEST = 1e-3, 1e3  # temperatures; a head without an error has no finite one


def class_scales(blocks: Blocks, num_classes: int, *, pull: float, share: RowShare | None = None) -> Tensor:
    """K scales f that minimise  sum_i v_i CE(f z_i, y_i) / sum_i v_i  +  pull / (2 K) |f - 1|^2.

    Newton's method, each step halved until the objective falls: strictly convex for pull > 0, which also
    keeps the scales finite where the logits separate the classes. In float64. With a `share`, the blocks are
    this process's rows.
    """
    scales = torch.ones(num_classes, dtype=torch.float64)

    def at(scales: Tensor) -> tuple[float, Tensor, Tensor]:
        return _scaled_cross_entropy(blocks, scales, pull, share)

    value, gradient, curvature = at(scales)
    for _ in range(MAX_STEPS):
        step = torch.linalg.solve(curvature, -gradient)
        decrement = -float(gradient @ step)
        if decrement / 2 <= TOL * max(1.0, abs(value)):
            return scales
        length = 1.0
        while length > SHORTEST:
            new = at(scales + length * step)
            if new[0] <= value - 1e-4 * length * decrement:
                break
            length /= 2
        else:
            return scales
        scales, (value, gradient, curvature) = scales + length * step, new
    raise UserError(f"the classes' scales did not settle in {MAX_STEPS} steps: give a larger pull")


def _scaled_cross_entropy(
    blocks: Blocks, scales: Tensor, pull: float, share: RowShare | None = None
) -> tuple[float, Tensor, Tensor]:
    """Value, gradient (K) and curvature (K x K). With q = p z elementwise, the curvature of a row is
    diag(p z^2) - q q^T."""
    k = len(scales)
    sums = torch.zeros(2, dtype=torch.float64)  # the loss, and the rows' weights
    gradient, diagonal = torch.zeros(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    outer = torch.zeros(k, k, dtype=torch.float64)
    for logits, labels, weight in blocks():
        z, v = logits.double(), weight.double()
        log_p = F.log_softmax(z * scales, dim=1)
        p = log_p.exp()
        sums[0] -= v @ log_p.gather(1, labels.unsqueeze(1)).squeeze(1)
        sums[1] += v.sum()
        error = p.scatter_add(1, labels.unsqueeze(1), p.new_full((len(p), 1), -1.0))
        gradient += v @ (error * z)
        diagonal += v @ (p * z.square())
        q = p * z
        outer += (v.unsqueeze(1) * q).T @ q
    if share is not None:
        sums, gradient, diagonal, outer = share.total(sums, gradient, diagonal, outer)
    value, mass = sums.tolist()
    away = scales - 1
    curvature = (torch.diag(diagonal) - outer) / mass + pull / k * torch.eye(k, dtype=torch.float64)
    return value / mass + pull / (2 * k) * float(away @ away), gradient / mass + pull / k * away, curvature


def temperature(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """The T that minimises the mean CE(z / T, y) of N x K logits, rows weighted by N numbers if given: convex
    in 1/T, found by bisection of its slope, sum_i v_i (E_p[z_i] - z_iy)."""
    z = logits.double()
    own = z.gather(1, labels.unsqueeze(1)).squeeze(1)
    v = torch.ones_like(own) if weight is None else weight.to(own)

    def slope(inverse: float) -> float:
        return float(v @ ((F.softmax(inverse * z, dim=1) * z).sum(1) - own))

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(high) <= 0:
        return COLDEST
    if slope(low) >= 0:
        return HOTTEST
    while high / low > 1 + 1e-12:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / (low * high) ** 0.5)
