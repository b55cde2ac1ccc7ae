"""Chosen rows of one or several splits, seen as one list of labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.data import BadImage, Dataset

Indices = NDArray[np.int64]


class Samples:
    """`samples[i]` is (image, label), as in a split; rows are counted over the splits in their order."""

    def __init__(self, splits: Sequence[Any], rows: Indices | None = None) -> None:
        self.splits = list(splits)
        self.name = "+".join(split.name for split in self.splits)
        self._ends = np.cumsum([len(split) for split in self.splits])
        labels = np.concatenate([split.labels for split in self.splits])
        ids = [sample for split in self.splits for sample in split.ids]
        self._rows = np.arange(len(labels)) if rows is None else rows
        self.labels: Indices = labels[self._rows]
        self.ids = [ids[row] for row in self._rows]

    @classmethod
    def training(cls, data: Dataset) -> Samples:
        """What may be learnt from: train and, where there is one, the official validation split."""
        return cls([data[name] for name in data.splits if name != "test"])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row = int(self._rows[index])
        which = int(np.searchsorted(self._ends, row, side="right"))
        return self.splits[which][row - (int(self._ends[which - 1]) if which else 0)]

    def subset(self, rows: Indices) -> Samples:
        return Samples(self.splits, self._rows[rows])

    def readable(self) -> Indices:
        """The rows whose images can be decoded; reads every one of them."""

        def fine(index: int) -> bool:
            try:
                self[index]
            except BadImage:
                return False
            return True

        with ThreadPoolExecutor() as pool:
            return np.flatnonzero(list(pool.map(fine, range(len(self)))))
