"""Easy, Medium and Hard: thirds of the classes, ranked by a model that is not the one under test.

Ranking classes by the judged model's own test accuracy makes any rival look good on "Hard" by regression
to the mean. So the ranking comes from a reference: by default an ERM probe's cross-fitted accuracy on the
training split, which costs five solves on cached features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

GROUPS = ("easy", "medium", "hard")

# (training rows, their labels, held-out rows) -> class probabilities of the held-out rows
FitPredict = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.floating]]


def thirds(
    accuracy: NDArray[np.float64], tie_break: NDArray[np.float64] | None = None
) -> dict[str, list[int]]:
    """Class indices of each group, easiest first; when K is no multiple of 3 the easier groups are larger.

    Equal accuracies are ordered by `tie_break` (a finer score, higher is easier), then by class index.
    """
    num_classes = len(accuracy)
    finer = np.zeros(num_classes) if tie_break is None else tie_break
    order = np.lexsort((np.arange(num_classes), -finer, -accuracy))
    return {name: [int(k) for k in part] for name, part in zip(GROUPS, np.array_split(order, 3), strict=True)}


def folds(labels: NDArray[np.int64], number: int, seed: int) -> NDArray[np.int64]:
    """The fold of each row: every class is dealt out evenly, in a seeded order."""
    rng = np.random.default_rng(seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == k))
        fold[rows] = (np.arange(len(rows)) + rng.integers(number)) % number
    return fold


def crossfit(
    labels: NDArray[np.int64], num_classes: int, fit_predict: FitPredict, *, number: int = 5, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Held-out accuracy and mean probability of the true class, for each class.

    `fit_predict(kept, held)` trains on rows `kept` and returns the probabilities (rows x K) of rows `held`.
    """
    hit = np.zeros(len(labels))
    confidence = np.zeros(len(labels))
    fold = folds(labels, number, seed)
    for part in range(number):
        kept, held = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        if len(held) == 0:
            continue
        probability = fit_predict(kept, held)
        hit[held] = probability.argmax(axis=1) == labels[held]
        confidence[held] = probability[np.arange(len(held)), labels[held]]
    n = np.bincount(labels, minlength=num_classes)

    def mean(value: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(labels, weights=value, minlength=num_classes) / np.maximum(n, 1)

    return mean(hit), mean(confidence)
