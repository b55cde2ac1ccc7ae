"""Holding out a validation part of a labelled set: stratified, seeded, and recorded by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from probe.errors import UserError


def stratified_holdout(labels: np.ndarray, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split N rows into (kept, held out) indices, both ascending; `fraction` of every class is held out.

    A class of two or more rows has at least one on each side; a class of one is kept.

    >>> keep, val = stratified_holdout(train.labels, 0.2, seed=0)
    """
    if not 0 < fraction < 1:
        raise UserError(f"the fraction to hold out must lie between 0 and 1, not {fraction}")
    labels = np.asarray(labels)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.clip(np.rint(fraction * counts).astype(np.int64), 1, counts - 1)

    # A random order within each class: a row's rank in it decides its side.
    order = np.lexsort((np.random.default_rng(seed).random(len(labels)), classes))
    first = np.cumsum(counts) - counts
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(first, counts)
    held_out = rank < quota[classes]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def holdout_digest(ids: Iterable[str]) -> str:
    """A name for exactly these samples, in any order: sha256 of the sorted ids."""
    digest = hashlib.sha256()
    for sample in sorted(ids):
        digest.update(f"{len(sample)}:{sample}\n".encode())
    return digest.hexdigest()
