"""Choosing l2, the weight of the penalty, on validation data, over the grid of the CLIP protocol.

The grid has 96 values of l2, log-spaced from 1e-6 to 1e6. By default it is searched coarse to fine: every
sixteenth value from the strongest on, until two in a row do no better; then the neighbours of the best one at
half the spacing, until neighbours on the grid have been compared: about 13 fits instead of 96. Of equal
scores the stronger penalty wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

GRID: tuple[float, ...] = tuple(np.logspace(-6, 6, 96).tolist())
COARSE = 16  # positions between the first values tried
PATIENCE = 2  # weaker values in a row that do no better; the weakest ones take as long as all others together

# values of l2 -> their validation scores, in the same order
Score = Callable[[Sequence[float]], Sequence[float]]


@dataclass(frozen=True)
class Selection:
    """The chosen l2 and every one that was tried: (l2, score), weakest first."""

    l2: float
    table: list[tuple[float, float]]


def select(score: Score, *, full: bool = False) -> Selection:
    """The l2 with the best validation score; `full` tries all 96."""
    tried = dict(enumerate(score(GRID))) if full else _coarse_to_fine(score)
    return Selection(GRID[_best(tried)], [(GRID[i], float(tried[i])) for i in sorted(tried)])


def _coarse_to_fine(score: Score) -> dict[int, float]:
    """From the strongest penalty on, because weaker ones start from stronger ones' solutions."""
    last = len(GRID) - 1
    tried: dict[int, float] = {}
    for i in range(last, -1, -COARSE):
        [tried[i]] = score([GRID[i]])
        if _best(tried) - i >= PATIENCE * COARSE:
            break
    spacing = COARSE
    while spacing > 1:
        spacing //= 2
        best = _best(tried)
        near = [i for i in (best + spacing, best - spacing) if 0 <= i <= last and i not in tried]
        tried |= dict(zip(near, score([GRID[i] for i in near]) if near else [], strict=True))
    return tried


def _best(tried: dict[int, float]) -> int:
    """The highest score; of equal ones the strongest penalty, which is the simplest model."""
    return max(tried, key=lambda i: (tried[i], i))
