"""How far a guess can be trusted: what test images were when the model said a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OFTEN = 0.25  # share of a class's wrong guesses from which another class is named
TWICE = 2  # and so many of them: once is chance


@dataclass(frozen=True)
class TrackRecord:
    """Of one class: the guesses of it on test images, and what those images really were."""

    guesses: int
    right: int
    instead: str | None  # the class that most of the wrong ones were

    def __str__(self) -> str:
        """`right 55 % of the time; often hibiscus`."""
        if not self.guesses:
            return "never guessed on test images"
        said = f"right {100 * self.right / self.guesses:.0f} % of the time"
        return f"{said}; often {self.instead}" if self.instead else said


def track_records(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], class_names: Sequence[str]
) -> list[TrackRecord]:
    """One per class, from N test labels and N predictions (of several seeds, one after the other)."""
    k = len(class_names)
    counts = np.bincount(predicted * k + labels, minlength=k * k).reshape(k, k)  # guess x truth
    made = []
    for guess, row in enumerate(counts):
        wrong = row.copy()
        wrong[guess] = 0
        worst = int(wrong.argmax())
        often = wrong[worst] >= max(TWICE, OFTEN * wrong.sum())
        made.append(TrackRecord(int(row.sum()), int(row[guess]), class_names[worst] if often else None))
    return made
