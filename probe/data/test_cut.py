"""Test images for data that has none: a share of every class, drawn by content (`probe.data.drawing`).

Copies of one image stay on one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.data.dataset import Split
from probe.data.drawing import places
from probe.data.holdout import holdout_digest
from probe.errors import UserError

FRACTION = 0.2
SEED = 0  # always: a test set that changes with the seed of a run is none


@dataclass(frozen=True)
class TestCut:
    """What was cut off as test, for the record of a run."""

    __test__ = False  # pytest

    fraction: float
    images: int
    digest: str  # of the ids, as `holdout_digest`

    def record(self) -> dict[str, Any]:
        """Plain values for result.json."""
        return {"fraction": self.fraction, "seed": SEED, "images": self.images, "digest": self.digest}

    @property
    def remark(self) -> str:
        """One line that nobody should miss."""
        return (
            f"there is no test split: {self.images:,} images, {self.fraction:.0%} of every class, were cut "
            "from train to test on, always the same ones (data.test_fraction; data.splits.test names a split)"
        )


def cut(everything: Split, fraction: float = FRACTION) -> tuple[dict[str, Split], TestCut]:
    """The splits train and test, and what to say about it."""
    if not 0 < fraction < 1:
        raise UserError(f"data.test_fraction={fraction:g} must lie between 0 and 1")
    lone = np.flatnonzero(everything.class_counts == 1)
    if len(lone):
        name = everything.class_names[lone[0]]
        raise UserError(
            f'class "{name}" has one image, and there is no test split: a class needs at least two, one to '
            f"learn from and one to test on ({len(lone):,} such classes; data.subset can leave them out)"
        )
    drawn = _drawn(everything, fraction)
    train, test = everything.subset(~drawn, "train"), everything.subset(drawn, "test")
    return {"train": train, "test": test}, TestCut(fraction, len(test), holdout_digest(test.ids))


def _drawn(split: Split, fraction: float) -> np.ndarray:
    """Which rows are drawn, N bool: of every class the share that comes first, at least one, never all."""
    at = places(split, f"test cut {SEED}")
    drawn = np.zeros(len(split), dtype=bool)
    for label in np.flatnonzero(split.class_counts):
        rows = np.flatnonzero(split.labels == label)
        kinds, number = np.unique(at[rows], return_inverse=True)  # copies of an image are one kind
        quota = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        copies = np.cumsum(np.bincount(number))
        last = min(int(np.searchsorted(copies, quota)), len(kinds) - 2)
        if last < 0:
            raise UserError(
                f'class "{split.class_names[label]}" has one image only, {len(rows)} times, and there is no '
                "test split; remove the copies, or the class"
            )
        drawn[rows[number <= last]] = True
    return drawn
