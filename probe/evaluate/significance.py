"""Error bars by a paired, stratified bootstrap over test images and seeds, without touching the images again.

Within a class, two test images that every compared model treats alike (right or wrong, seed by seed) are
interchangeable. So a resampled test set is described by how often each *pattern* of right and wrong occurs
in each class: one multinomial draw a class, instead of one random index an image. The result has exactly the
distribution of the image-wise bootstrap and costs K small draws, whatever the number of images.

Every statistic we report (overall, mean per class, a group, one class) is a fixed weighting of the class
accuracies, so one set of draws (B x K) serves all of them by one product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; `p` is the two-sided p-value of "the true value is 0"."""

    mean: float
    ci: tuple[float, float]
    p: float

    @property
    def clear(self) -> bool:
        """Does the interval exclude 0?"""
        return not self.ci[0] <= 0 <= self.ci[1]


def class_draws(
    hits: NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int, *, draws: int = DRAWS, seed: int = 0
) -> NDArray[np.float64]:
    """Bootstrap class accuracies, M x B x K, of M models on the same images (paired: one resample for all).

    `hits` is M x S x N (models x seeds x images). Seeds are drawn anew too, together for all models.
    Deviations are widened by sqrt(n / (n - 1)), within each class and over seeds: drawing n of n values
    understates their spread by exactly that factor.
    """
    models, seeds, _ = hits.shape
    rng = np.random.default_rng(seed)
    picked = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds  # B x S
    picked = 1 / seeds + (picked - 1 / seeds) * _widening(seeds)
    result = np.full((models, draws, num_classes), np.nan)
    ordered = hits[:, :, np.argsort(labels, kind="stable")].reshape(models * seeds, -1).T
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    for k, rows in enumerate(np.split(ordered, ends[:-1])):
        if len(rows) == 0:
            continue
        patterns, counts = np.unique(rows, axis=0, return_counts=True)
        share = counts / counts.sum()
        drawn = rng.multinomial(len(rows), share, size=draws) / len(rows)  # B x patterns
        drawn = share + (drawn - share) * _widening(len(rows))
        accuracy = (drawn @ patterns).reshape(draws, models, seeds)
        result[:, :, k] = np.einsum("bms,bs->mb", accuracy, picked)
    return result


def _widening(n: int) -> float:
    return float(np.sqrt(n / (n - 1))) if n > 1 else 1.0


def weightings(n: NDArray[np.int64], groups: Mapping[str, list[int]]) -> dict[str, NDArray[np.float64]]:
    """How each statistic weighs the class accuracies: overall by images, a group by classes."""
    table = {"overall": n / n.sum(), "mean_per_class": (n > 0) / (n > 0).sum()}
    for name, members in groups.items():
        weight = np.zeros(len(n))
        weight[[k for k in members if n[k] > 0]] = 1
        table[name] = weight / max(weight.sum(), 1)
    return table


def estimate(draws: NDArray[np.float64], value: NDArray[np.float64], weight: NDArray[np.float64]) -> Estimate:
    """Mean, percentile interval and p-value of one weighting of `value` (K, observed) and `draws` (B x K)."""
    used = weight > 0
    sample = draws[:, used] @ weight[used]
    low, high = np.percentile(sample, [2.5, 97.5])
    tail = min((sample <= 0).sum(), (sample >= 0).sum())
    p = min(1.0, 2 * (tail + 1) / (len(sample) + 1))
    return Estimate(float(value[used] @ weight[used]), (float(low), float(high)), float(p))
