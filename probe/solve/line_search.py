"""A step along a direction: the strong Wolfe conditions, for several convex problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core.row_share import RowShare
from probe.solve import certificate
from probe.solve.objective import Evaluator, Line, Point

# c1 is the textbook's (Nocedal and Wright, ch. 3); c2 is the evaluator's `patience`.
C1 = 1e-4  # sufficient decrease: at least this share of what the slope at 0 promises
SLACK = 4  # roundings of f that sufficient decrease may be missed by: near the optimum f cannot tell
TRIALS = 30  # values of t; a bracket that is halved so often is narrower than float32 can step
MARGIN = 0.1  # of the bracket, at both ends: a secant that lands there hardly narrows it, so bisect instead
DOUBLE, FARTHEST = 2.0, 5.0  # outside a bracket: step without a usable secant, and how far to trust one


def along(evaluator: Evaluator, point: Point, direction: Tensor, slope: Tensor, l2: Tensor) -> Point:
    """The point after a good step; `slope` (B) is that at the start, below 0."""
    line = evaluator.line(point, direction, l2)
    slack = SLACK * torch.finfo(evaluator.dtype).eps * point.value.abs()
    return line.take(search(_Agreed(line, evaluator.share), point.value, slope, slack, evaluator.patience))


class _Agreed:
    """A line whose values are process 0's, so that the search takes the same turns everywhere."""

    def __init__(self, line: Line, share: RowShare) -> None:
        self.line, self.share, self.take = line, share, line.take

    def value(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.share.agreed(*self.line.value(t))
        return value, slope


def search(line: Line, value: Tensor, slope: Tensor, slack: Tensor, patience: float) -> Tensor:
    """Steps t > 0 that meet the strong Wolfe conditions (0 where none does), for B convex functions.

    `value` and `slope` (B each) are those at t = 0. The root of the slope is bracketed and approached by the
    secant; the first guess is Newton's t = 1.
    """
    low, low_slope = torch.zeros_like(value), slope
    high, high_slope = torch.full_like(value, torch.inf), torch.full_like(value, torch.nan)
    t, done = torch.ones_like(value), torch.zeros_like(value, dtype=torch.bool)
    for _ in range(TRIALS):
        f, s = line.value(t)
        lower = f <= value + C1 * t * slope + slack
        done |= lower & (s.abs() <= patience * slope.abs())
        if certificate.holds(done.all()):
            return t
        beyond = ~lower | (s > 0)
        secant = low - low_slope * (t - low) / (s - low_slope)
        high, high_slope = torch.where(beyond, t, high), torch.where(beyond, s, high_slope)
        low, low_slope = torch.where(beyond, low, t), torch.where(beyond, low_slope, s)
        width = high - low
        inside = low - low_slope * width / (high_slope - low_slope)
        trusted = inside.isfinite() & (inside > low + MARGIN * width) & (inside < high - MARGIN * width)
        inside = torch.where(trusted, inside, low + width / 2)
        outside = torch.where(secant > t, torch.minimum(secant, FARTHEST * t), DOUBLE * t)
        t = torch.where(done, t, torch.where(high.isfinite(), inside, outside))
    t = torch.where(done, t, torch.where(line.value(low)[0] < value, low, 0.0))
    line.value(t)
    return t
