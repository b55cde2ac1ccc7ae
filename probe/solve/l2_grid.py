"""Choosing l2, the weight of the penalty, on validation data, over the grid of the CLIP protocol.

The grid has 96 values of l2, log-spaced from 1e-6 to 1e6. By default it is searched coarse to fine: every
sixteenth value from the strongest on, every eighth from where weaker ones help, until two in a row do no
better, or one is worse beyond doubt; then neighbours of the best one at half the spacing, until neighbours
on the grid are compared: about 13 fits instead of 96. Of equal scores, which are common where few images
validate, the higher likelihood wins, and of equal ones of that the stronger penalty. While the strongest of
all is still the best, more are tried: it may have made every prediction the same, as others that are nearly
as strong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

GRID: tuple[float, ...] = tuple(np.logspace(-6, 6, 96).tolist())
COARSE = 16  # positions between the first values tried
PATIENCE = 2  # weaker values in a row that do no better
STUCK = 4  # weaker values that are tried before the strongest of all is believed
NEAR = 4  # positions between the first values tried around a place that is expected to be good

# values of l2 -> their validation scores and mean log-likelihoods, in the same order
Score = Callable[[Sequence[float]], Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Selection:
    """The chosen l2 and every one that was tried: (l2, score), weakest first."""

    l2: float
    table: list[tuple[float, float]]


class Trials(Protocol):
    """Positions of the grid that are tried one after the other, and which of them is the best so far."""

    @property
    def tried(self) -> Collection[int]: ...

    def fit(self, positions: Sequence[int]) -> None:
        """Try these too."""

    def best(self) -> int:
        """Of equal ones the strongest penalty, which is the simplest model."""

    def worse(self, position: int) -> bool:
        """Is this one worse than the best, beyond doubt? Then weaker ones are not tried, which would take as
        long as all others together."""


def select(score: Score, *, full: bool = False) -> Selection:
    """The l2 with the best validation score; `full` tries all 96."""
    trials = _Scored(score)
    if full:
        trials.fit(range(len(GRID)))
    else:
        coarse_to_fine(trials)
    table = [(GRID[i], float(trials.tried[i][0])) for i in sorted(trials.tried)]
    return Selection(GRID[trials.best()], table)


def coarse_to_fine(trials: Trials) -> None:
    """From the strongest penalty on, because weaker ones start from stronger ones' solutions."""
    strongest = len(GRID) - 1
    for i in range(strongest, -1, -COARSE):
        trials.fit([i])
        best = trials.best()
        patience = STUCK if best == strongest else PATIENCE
        if best - i >= patience * COARSE or trials.worse(i):
            break
        if best < strongest:  # the next one may be a hundred times the work: first ask half-way there
            half = max(i - COARSE // 2, 0)
            trials.fit([half])
            if trials.worse(half):
                break
    spacing = COARSE
    while spacing > 1:
        spacing //= 2
        _fit_neighbours(trials, spacing)


def around(trials: Trials, start: int) -> None:
    """Uphill from a position that should be near the best one, until no neighbour on the grid is better."""
    if start not in trials.tried:
        trials.fit([start])
    spacing = NEAR
    while spacing >= 1:
        before = trials.best()
        _fit_neighbours(trials, spacing)
        if trials.best() == before:
            spacing //= 2


def _fit_neighbours(trials: Trials, spacing: int) -> None:
    best = trials.best()
    near = [i for i in (best + spacing, best - spacing) if 0 <= i < len(GRID) and i not in trials.tried]
    if near:
        trials.fit(near)


class _Scored:
    """Trials with a score and a likelihood each."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.tried: dict[int, tuple[float, float]] = {}

    def fit(self, positions: Sequence[int]) -> None:
        self.tried |= dict(zip(positions, self.score([GRID[i] for i in positions]), strict=True))

    def best(self) -> int:
        return max(self.tried, key=lambda i: (self.tried[i], i))

    def worse(self, position: int) -> bool:
        """By its score and by its likelihood: few images can make one of them lower by chance, hardly both.
        Only below the first peak, because strong penalties all predict alike."""
        best = self.best()
        lower = (a < b for a, b in zip(self.tried[position], self.tried[best], strict=True))
        return best < len(GRID) - 1 and all(lower)
