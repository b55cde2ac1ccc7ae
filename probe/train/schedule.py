"""The learning rate as a pure function of the optimiser step: nothing to save, nothing to step."""

from __future__ import annotations

import math
from dataclasses import dataclass


def factor(step: int, total: int, warmup: int) -> float:
    """What the peak rate is multiplied by at `step` (from 0): linear warm-up, then half a cosine to 0.

    The first warm-up step is 1/warmup, the first step after it is 1; step `total` would be 0.

    >>> [round(factor(s, 8, 2), 2) for s in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


@dataclass(frozen=True)
class Schedule:
    """The learning rate of `total` steps: linear warm-up to `peak`, then half a cosine to 0."""

    peak: float
    total: int
    warmup: int

    def warmth(self, step: int) -> float:
        """How far the warm-up is at a step: up to 1, which it stays at."""
        return min(1.0, (step + 1) / max(1, self.warmup))

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.peak * factor(step, self.total, self.warmup)
