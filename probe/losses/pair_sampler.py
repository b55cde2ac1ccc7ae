"""Batches that hold same-class pairs, for losses that live on them, in a training loop of your own.

Here every class is shown equally often. The loop of this package has `train.sampler: pairs` instead, which
shows every image once per epoch and only keeps partners together (`probe.train.inputs.sampler`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from probe.errors import UserError


class ClassPairSampler(Sampler[list[int]]):
    """m images of each of P classes in every batch; give it to a DataLoader as `batch_sampler`.

    Each class walks through its own shuffled images and the classes take turns in shuffled rounds, so rare
    classes are shown as often as common ones. A class with fewer than m images gives all it has; a class with
    a single image has no pair and is still shown. An epoch is as many batches as would show every image once.
    Call `set_epoch` for another order; the same seed and epoch give the same batches.

    >>> loader = DataLoader(images, batch_sampler=ClassPairSampler(labels, classes=16, per_class=2))
    """

    def __init__(self, labels: ArrayLike, *, classes: int, per_class: int = 2, seed: int = 0) -> None:
        self.labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.members = [np.flatnonzero(self.labels == k) for k in np.unique(self.labels)]
        if per_class < 2:
            raise UserError(f"per_class must be at least 2 for a batch to hold pairs, not {per_class}")
        if not 1 <= classes <= len(self.members):
            raise UserError(
                f"classes must be from 1 to {len(self.members)} (those in the data), not {classes}"
            )
        self.classes, self.per_class, self.seed, self.epoch = classes, per_class, seed, 0

    def __len__(self) -> int:
        return -(-len(self.labels) // (self.classes * self.per_class))

    @property
    def pairs(self) -> float:
        """Same-class pairs that a batch holds, on average over the classes (each is shown equally often)."""
        sizes = np.minimum([len(m) for m in self.members], self.per_class)
        return float(self.classes * np.mean(sizes * (sizes - 1) / 2))

    def __str__(self) -> str:
        small = sum(len(m) < self.per_class for m in self.members)
        text = f"{self.classes} classes x {self.per_class} images: {self.pairs:g} same-class pairs per batch"
        return text + (
            f" on average ({small} classes have fewer than {self.per_class} images)" if small else ""
        )

    def set_epoch(self, epoch: int) -> None:
        """Another order from now on; DataLoader and accelerate call it too."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        decks = [rng.permutation(m) for m in self.members]
        used = [0] * len(decks)
        waiting: list[int] = []  # classes of this round that have not been shown
        for _ in range(len(self)):
            turn, waiting = self._next_classes(waiting, rng)
            batch: list[int] = []
            for k in turn:
                wanted = min(self.per_class, len(decks[k]))
                if used[k] + wanted > len(decks[k]):
                    decks[k], used[k] = rng.permutation(self.members[k]), 0
                batch += decks[k][used[k] : used[k] + wanted].tolist()
                used[k] += wanted
            yield batch

    def _next_classes(self, waiting: list[int], rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """P different classes: what is left of a round first, then from a new one."""
        if len(waiting) < self.classes:
            fresh = rng.permutation(len(self.members)).tolist()
            late = set(waiting)
            waiting = waiting + [k for k in fresh if k not in late] + [k for k in fresh if k in late]
        return waiting[: self.classes], waiting[self.classes :]
