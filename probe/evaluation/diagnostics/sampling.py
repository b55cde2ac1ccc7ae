"""A part of a large split that has something of every class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def balanced_rows(labels: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """At most `most` of N rows in their order, drawn by `seed`: as many of every class where it has them."""
    if len(labels) <= most:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(starts, counts)  # each row's turn within its class
    return np.sort(order[np.argsort(place, kind="stable")[:most]])
