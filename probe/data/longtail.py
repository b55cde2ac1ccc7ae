"""Making any data set long-tailed: how many images each class keeps, and which.

With K classes of n = N / K images and imbalance factor F (largest over smallest class):

    exp     n_k = int(n (1/F)^(k / (K-1))),  k = 0 .. K-1          (Cao et al. 2019; Cui et al. 2019)
    step    n_k = int(n) for the first half of the classes, int(n / F) for the others

Class order is the data set's own; numbers are truncated, not rounded. An official validation split is thinned
by the same profile, because heads are refitted on train + val, which would fill the tail again; there a class
keeps one image at least. The test split never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from probe.data.dataset import Dataset
from probe.errors import UserError, nearest


def exponential(largest: float, classes: int, imbalance: float) -> np.ndarray:
    """Images of each class (K), falling exponentially from `largest` to `largest / imbalance`."""
    # The inverse is taken first, as in the original sampler: F^-x may truncate to one image fewer.
    share = (1.0 / imbalance) ** (np.arange(classes) / max(classes - 1, 1))
    return (largest * share).astype(np.int64)


def step(largest: float, classes: int, imbalance: float) -> np.ndarray:
    """Images of each class (K): `largest` for the first half, `largest / imbalance` for the others."""
    in_head = np.arange(classes) < classes // 2
    return np.where(in_head, largest, largest / imbalance).astype(np.int64)


PROFILES: dict[str, Callable[[float, int, float], np.ndarray]] = {"exp": exponential, "step": step}


def indices(
    labels: np.ndarray, classes: int, imbalance: float, profile: str = "exp", seed: int = 0, *, least: int = 0
) -> np.ndarray:
    """The rows to keep, ascending; a class that has fewer images than its share keeps all of them.

    A profile that leaves a class without images is refused, unless `least` gives every class some.
    """
    if profile not in PROFILES:
        raise UserError(f'unknown long-tail profile "{profile}"{nearest(profile, PROFILES)}')
    if not imbalance >= 1:
        raise UserError(f"imbalance must be at least 1 (largest class over smallest), not {imbalance}")
    wanted = np.maximum(PROFILES[profile](len(labels) / classes, classes, imbalance), least)
    if wanted.min() < 1:
        raise UserError(
            f"imbalance {imbalance:g} leaves the rarest class without images "
            f"(a class has {len(labels) / classes:.0f} on average); use {len(labels) // classes} or less"
        )
    # The legacy generator and one shuffle per class, in class order: as CIFAR-LT is usually drawn.
    random = np.random.RandomState(seed)
    kept = []
    for label, count in enumerate(wanted):
        rows = np.flatnonzero(labels == label)
        random.shuffle(rows)
        kept.append(rows[:count])
    return np.sort(np.concatenate(kept))


def long_tailed(data: Dataset, imbalance: float, profile: str = "exp", seed: int = 0) -> Dataset:
    """`data` with long-tailed train and val splits; its test split is untouched."""
    thinned, sizes = {}, []
    for name, least in (("train", 0), ("val", 1)):
        if name in data:
            split = data[name]
            rows = indices(split.labels, len(data.class_names), imbalance, profile, seed, least=least)
            thinned[name] = split.subset(rows, name)
            sizes.append(f"{len(rows):,} of {len(split):,} images of {name}")
    left = " and ".join(sizes)
    note = f"long tail: {profile}, imbalance {imbalance:g}, seed {seed}, {left}"
    said = f"the long tail was made: {left} are used, imbalance {imbalance:g}; test images are as they were"
    return replace(data.replace(name=f"{data.name}-lt", note=note, **thinned), thinned=said)
