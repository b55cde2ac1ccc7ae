"""Each image's nearest others by the cosine of features: how mixed classes are, and what is nearly the same.

Similarities are computed in blocks, so memory is bounded; two matrices of n and m rows take n m D products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from probe.solve import knn

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Rows = NDArray[np.floating]

NEIGHBOURS = 10
BLOCK_BYTES = 64 << 20  # of similarities held at a time
SMALLEST = 1e-6  # distances below it are rounding of single precision
FEWEST = 20  # distances from which a usual one can be told
FAR_BELOW = 5.0  # standard deviations below the usual distance, in logarithms


@dataclass(frozen=True)
class Nearest:
    """The k nearest rows of a bank for each of n queries, the nearest first."""

    index: Labels  # n x k
    distance: Floats  # n x k: 1 - cosine


def nearest(
    bank: Rows,
    queries: Rows | None = None,
    *,
    k: int = NEIGHBOURS,
    advance: Callable[[int], None] = lambda rows: None,
) -> Nearest:
    """For each query (n x D), or for each row of the bank (m x D) among the others."""
    unit = F.normalize(torch.from_numpy(np.ascontiguousarray(bank)).float(), dim=1)
    asked = (
        unit
        if queries is None
        else F.normalize(torch.from_numpy(np.ascontiguousarray(queries)).float(), dim=1)
    )
    k = max(0, min(k, len(unit) - (queries is None)))
    step = max(1, BLOCK_BYTES // (4 * max(len(unit), 1)))
    index, distance = [np.empty((0, k), np.int64)], [np.empty((0, k))]
    for start in range(0, len(asked) if k else 0, step):
        block = asked[start : start + step]
        similarity = block @ unit.T
        if queries is None:
            rows = torch.arange(len(block))
            similarity[rows, start + rows] = -torch.inf
        near, which = knn.nearest(similarity, k)
        index.append(which.numpy())
        distance.append(1 - near.double().numpy())
        advance(len(block))
    return Nearest(np.concatenate(index), np.concatenate(distance))


def own_share(labels: Labels, near: Nearest, num_classes: int) -> Floats:
    """K: the share of its images' nearest neighbours that is of the class; NaN for one image or none.

    A class of few images has fewer than k others: only so many neighbours are asked.
    """
    n = np.bincount(labels, minlength=num_classes)
    asked = np.minimum(near.index.shape[1], n - 1)[labels]
    same = (labels[near.index] == labels[:, None]) & (np.arange(near.index.shape[1]) < asked[:, None])
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.bincount(labels, weights=asked, minlength=num_classes)
        return np.asarray(np.bincount(labels, weights=same.sum(axis=1), minlength=num_classes) / total)


def duplicate_distance(near: Nearest) -> float:
    """The distance at and below which two images count as near-duplicates: far below the usual distance.

    Usual is the distribution of the distance to the nearest other image, in logarithms: its median and, as
    its standard deviation, the upper quartile minus the median over 0.674. Duplicates crowd the lower half.
    """
    if near.distance.shape[1] == 0 or len(near.distance) < FEWEST:
        return SMALLEST
    middle, upper = np.quantile(np.log(np.maximum(near.distance[:, 0], SMALLEST)), [0.5, 0.75])
    return max(float(np.exp(middle - FAR_BELOW * (upper - middle) / 0.6745)), SMALLEST)


@dataclass(frozen=True)
class Pair:
    """A row and a row of the bank that are nearly the same."""

    row: int
    other: int
    distance: float


def close_pairs(near: Nearest, limit: float, *, within: bool) -> Iterator[Pair]:
    """All pairs at most `limit` apart, each once, the closest first; `within` a bank, or from queries."""
    rows, places = np.nonzero(near.distance <= limit)
    others, distance = near.index[rows, places], near.distance[rows, places]
    if within:  # i finds j and j finds i, unless one of them has too many neighbours that are nearer
        low, high = np.minimum(rows, others), np.maximum(rows, others)
        _, first = np.unique(np.stack([low, high], axis=1), axis=0, return_index=True)
        rows, others, distance = low[first], high[first], distance[first]
    for i in np.lexsort((others, rows, distance)):
        yield Pair(int(rows[i]), int(others[i]), max(0.0, float(distance[i])))
