"""Choosing the strength of the penalty on validation data, over the grid of the CLIP protocol.

The grid has 96 values of l2, log-spaced from 1e-6 to 1e6. By default it is searched coarse to fine: seven
values over the whole range, then the neighbours of the best one at half the spacing, until neighbours on the
grid have been compared: about 15 fits instead of 96. Of equal scores the stronger penalty wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

GRID: tuple[float, ...] = tuple(np.logspace(-6, 6, 96).tolist())
COARSE = 16  # positions between the first values tried

# strengths -> their validation scores, in the same order
Score = Callable[[Sequence[float]], Sequence[float]]


@dataclass(frozen=True)
class Selection:
    """The chosen strength and every one that was tried: (l2, score), weakest first."""

    l2: float
    table: list[tuple[float, float]]


def select(score: Score, *, full: bool = False) -> Selection:
    """The strength with the best validation score."""
    last = len(GRID) - 1
    if full:
        tried = dict(zip(range(last + 1), score(GRID), strict=True))
    else:
        tried = {}
        spacing = COARSE
        wanted = sorted({*range(0, last, spacing), last})
        while spacing >= 1:
            fresh = [i for i in wanted if i not in tried]
            tried |= dict(zip(fresh, score([GRID[i] for i in fresh]) if fresh else [], strict=True))
            spacing //= 2
            best = _best(tried)
            wanted = [i for i in (best - spacing, best + spacing) if 0 <= i <= last]
    return Selection(GRID[_best(tried)], [(GRID[i], float(tried[i])) for i in sorted(tried)])


def _best(tried: dict[int, float]) -> int:
    """The highest score; of equal ones the strongest penalty, which is the simplest model."""
    return max(tried, key=lambda i: (tried[i], i))
