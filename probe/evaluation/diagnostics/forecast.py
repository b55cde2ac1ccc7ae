"""Which classes will be hard? A forecast from features alone, before any training.

Each sign of difficulty ranks the K classes; the forecast is the mean of their ranks, from 0 (easiest) to 1:

    spread      spread of the class over the squared distance of its mean to the nearest other mean
    neighbours  share of its images' nearest neighbours that is of other classes (leave-one-out)
    zero-shot   share of its training images that the class names' text embeddings get wrong, for CLIP

All on unit features, all with equal weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.diagnostics import features

Floats = NDArray[np.float64]


def relative_spread(unit: NDArray[np.floating], labels: NDArray[np.int64], num_classes: int) -> Floats:
    """K: the spread of each class over the squared distance of its mean to the nearest other class's mean.

    NaN for classes without rows, and where there is only one class.
    """
    mean, spread = features.centres(unit, labels, num_classes), features.spread(unit, labels, num_classes)
    norm2 = (mean**2).sum(axis=1)
    apart = np.maximum(norm2[:, None] + norm2 - 2 * mean @ mean.T, 0)
    np.fill_diagonal(apart, np.inf)
    apart[np.isnan(apart)] = np.inf
    gap = apart.min(axis=1, initial=np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(gap), spread / np.maximum(gap, np.finfo(np.float64).tiny), np.nan)


def difficulty(signs: Mapping[str, Floats]) -> Floats:
    """K: the mean rank under all signs (K each, larger is harder), 0 to 1; NaN where no sign is known."""
    parts = np.stack([_ranks(values) for values in signs.values()])
    known = ~np.isnan(parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, parts, 0).sum(axis=0) / known.sum(axis=0))


def _ranks(values: Floats) -> Floats:
    """0 for the smallest to 1 for the largest of the known values, ties share their mean rank; NaN stays."""
    from scipy.stats import rankdata

    known, ranks = ~np.isnan(values), np.full(len(values), np.nan)
    if known.any():
        ranks[known] = (rankdata(values[known]) - 1) / max(int(known.sum()) - 1, 1)
    return ranks


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Spearman's, over the classes that both know; None for fewer than three, or where one is constant."""
    known = ~(np.isnan(a) | np.isnan(b))
    x, y = _ranks(a[known]), _ranks(b[known])
    if known.sum() < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])
