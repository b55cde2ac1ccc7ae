"""Accuracy in the words people use: overall, by class, worst, best, gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError

CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassCounts:
    """Test images of each class, and how many of them were predicted correctly (mean over seeds)."""

    n: NDArray[np.int64]  # K
    correct: NDArray[np.float64]  # K, a mean over seeds

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """K accuracies; NaN for a class with no test image."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.correct / self.n


def count(correct: NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int) -> ClassCounts:
    """Counts by class. `correct` is N, or seeds x N: was image i predicted correctly?"""
    share = np.atleast_2d(correct).mean(axis=0)  # of the seeds that are correct on each image
    return ClassCounts(
        n=np.bincount(labels, minlength=num_classes),
        correct=np.bincount(labels, weights=share, minlength=num_classes).astype(np.float64),
    )


def overall(counts: ClassCounts) -> dict[str, float]:
    """The scalar metrics of `result.json`, as fractions."""
    accuracy = counts.accuracy[counts.n > 0]
    return {
        "top1": float(counts.correct.sum() / counts.n.sum()),
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
    confidence: NDArray[np.floating], correct: NDArray[np.bool_], *, bins: int = CALIBRATION_BINS
) -> float:
    """Expected calibration error: the mean of |accuracy - confidence| over equally wide bins of confidence.

    `confidence` and `correct` have one entry per image. A bin is open below and closed above, so that a
    confidence of exactly 1 belongs to the last one.
    """
    if correct.size == 0:
        return float("nan")
    bin_of = _bins(confidence, bins)
    difference = np.bincount(bin_of, weights=correct.astype(np.float64) - confidence, minlength=bins)
    return float(np.abs(difference).sum() / len(correct))


def _bins(confidence: NDArray[np.floating], bins: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return found


def reliability(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_], *, bins: int = CALIBRATION_BINS
) -> list[dict[str, Any]]:
    """Mean confidence and accuracy of each bin of confidence that has images, with a 95 % interval.

    `confidence` and `correct` are S x N. Seeds see the same images, so an interval (Wilson's) counts those.
    """
    bin_of, found = _bins(confidence, bins), []
    for b in np.unique(bin_of):
        chosen = bin_of == b
        n, p = chosen.sum() / len(chosen), float(correct[chosen].mean())
        middle, half = (p + 1.92 / n) / (1 + 3.84 / n), 1.96 * np.sqrt(p * (1 - p) / n + 0.96 / n**2)
        low, high = middle - half / (1 + 3.84 / n), middle + half / (1 + 3.84 / n)
        found.append(
            {
                "confidence": float(confidence[chosen].mean()),
                "accuracy": p,
                "ci": [max(0.0, float(low)), min(1.0, float(high))],
                "images": float(n),
            }
        )
    return found


def extremes(counts: ClassCounts, class_names: tuple[str, ...]) -> dict[str, dict[str, str | float]]:
    """The worst and the best class; on ties, the first."""
    accuracy = counts.accuracy
    where = {"worst": int(np.nanargmin(accuracy)), "best": int(np.nanargmax(accuracy))}
    return {word: {"class": class_names[k], "accuracy": float(accuracy[k])} for word, k in where.items()}


def top_k(scores: NDArray[np.floating], labels: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """N: is the true class among the k best of the scores (N x K)? A tie counts against the model."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    rivals: NDArray[np.int64] = (scores >= own).sum(axis=1) - 1  # less the true class itself
    return rivals < k


def score(predicted: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int, metric: str) -> float:
    """A data set's own metric, used to choose hyper-parameters: 'accuracy' or 'mean_per_class'."""
    keys = {"accuracy": "top1", "mean_per_class": "mean_per_class"}
    if metric not in keys:
        raise UserError(f'unknown metric "{metric}"; known: {", ".join(keys)}')
    return overall(count(predicted == labels, labels, num_classes))[keys[metric]]


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float | None:
    """Spearman's: the correlation of the ranks of K pairs, ties at their mean; None where one is constant.

    >>> rank_correlation(np.array([1.0, 2, 3]), np.array([10.0, 30, 20]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size > 0 else None


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place], dtype=np.float64)
