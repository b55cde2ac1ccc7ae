"""Chosen rows of one or several splits, as one list of labelled images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.data import Dataset
from probe.train.inputs.loaders import LabelledImages

Indices = NDArray[np.int64]


class Samples:
    """`samples[i]` is (image, label), as in a split; rows are numbered over the splits in their order."""

    def __init__(
        self, splits: Sequence[LabelledImages], rows: Indices | None = None, groups: Indices | None = None
    ) -> None:
        self.splits = list(splits)
        self.name = "+".join(split.name for split in self.splits)
        self._ends = np.cumsum([len(split) for split in self.splits])
        labels = np.concatenate([split.labels for split in self.splits])
        ids = [sample for split in self.splits for sample in split.ids]
        self._rows = np.arange(len(labels)) if rows is None else rows
        self.labels: Indices = labels[self._rows]
        self.ids = [ids[row] for row in self._rows]
        self.groups = groups  # of these rows, that a method acts on; None: on the classes

    @classmethod
    def of(
        cls, data: Dataset, names: Sequence[str], ids: Mapping[str, Sequence[str]] | None = None
    ) -> Samples:
        """The named splits; of those in `ids`, only the samples named there."""
        splits = [data[name] for name in names]
        if ids is None:
            return cls(splits)
        known = [set(ids[split.name]) for split in splits]
        flags = [sample in kept for split, kept in zip(splits, known, strict=True) for sample in split.ids]
        return cls(splits, np.flatnonzero(flags))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row = int(self._rows[index])
        which = int(np.searchsorted(self._ends, row, side="right"))
        return self.splits[which][row - (int(self._ends[which - 1]) if which else 0)]

    def chosen(self, values: Indices) -> Indices:
        """Of values for every image of the splits, in order, those of these samples."""
        return values[self._rows]

    def subset(self, rows: Indices) -> Samples:
        """Only these rows of them."""
        return Samples(self.splits, self._rows[rows], None if self.groups is None else self.groups[rows])
