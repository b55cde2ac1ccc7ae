"""Accuracy in the words people use: overall, by class, worst, best, gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassCounts:
    """How many test images each class has, and how many were right (a mean over seeds)."""

    n: NDArray[np.int64]  # K
    right: NDArray[np.float64]  # K

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """K accuracies; NaN for a class with no test image."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.right / self.n


def count(hits: NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int) -> ClassCounts:
    """Counts by class; `hits` is (seeds x) N: was image i predicted right?"""
    value = np.atleast_2d(hits).mean(axis=0)
    return ClassCounts(
        n=np.bincount(labels, minlength=num_classes),
        right=np.bincount(labels, weights=value, minlength=num_classes).astype(np.float64),
    )


def overall(counts: ClassCounts) -> dict[str, float]:
    """The scalar metrics of `result.json`, as fractions."""
    accuracy = counts.accuracy[counts.n > 0]
    return {
        "top1": float(counts.right.sum() / counts.n.sum()),
        "mean_per_class": float(accuracy.mean()),
        "gap": float(accuracy.max() - accuracy.min()),
        "std": float(accuracy.std()),
        "gini": gini(accuracy),
        "worst_tenth": worst_tenth(accuracy),
    }


def gini(accuracy: NDArray[np.float64]) -> float:
    """How unevenly accuracy is spread over classes: 0 when all are equal, towards 1 when one has it all.

    Half the mean absolute difference of two classes, divided by the mean; by sorting, not by pairs.
    """
    ordered = np.sort(accuracy)
    k, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    return float((2 * np.arange(1, k + 1) - k - 1) @ ordered / (k * total))


def worst_tenth(accuracy: NDArray[np.float64]) -> float:
    """Mean accuracy of the worst 10 % of the classes (at least one, rounded up)."""
    return float(np.sort(accuracy)[: -(-len(accuracy) // 10)].mean())


def calibration_error(
    confidence: NDArray[np.floating], hits: NDArray[np.bool_], *, bins: int = CALIBRATION_BINS
) -> float:
    """Expected calibration error: the mean of |accuracy - confidence| over equally wide bins of confidence.

    A bin is open below and closed above, so that a confidence of exactly 1 belongs to the last one.
    """
    if hits.size == 0:
        return float("nan")
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    difference = np.bincount(bin_of, weights=hits.astype(np.float64) - confidence, minlength=bins)
    return float(np.abs(difference).sum() / len(hits))


def extremes(counts: ClassCounts, class_names: tuple[str, ...]) -> dict[str, dict[str, str | float]]:
    """The worst and the best class; of equals, the first."""
    accuracy = counts.accuracy
    where = {"worst": int(np.nanargmin(accuracy)), "best": int(np.nanargmax(accuracy))}
    return {word: {"class": class_names[k], "accuracy": float(accuracy[k])} for word, k in where.items()}


def top_k(scores: NDArray[np.floating], labels: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Is the true class among the k best scores? A tie counts against the model."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    better = (scores >= own).sum(axis=1) - 1  # the true class itself is always >= itself
    return better < k


def score(predicted: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int, metric: str) -> float:
    """A data set's own metric, for choosing hyper-parameters: 'accuracy' or 'mean_per_class'."""
    keys = {"accuracy": "top1", "mean_per_class": "mean_per_class"}
    if metric not in keys:
        raise UserError(f'unknown metric "{metric}"; known: {", ".join(keys)}')
    return overall(count(predicted == labels, labels, num_classes))[keys[metric]]
