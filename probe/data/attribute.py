"""A column beside the images that splits them into groups: hospital, camera, sex, background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.data.dataset import Dataset
from probe.errors import UserError

MOST = 100  # values: a column with more is an id or a measurement


@dataclass(frozen=True)
class Attribute:
    """The attribute `name` of every image of a data set: one of A `values`."""

    name: str
    values: tuple[str, ...]  # A
    by_split: Mapping[str, Mapping[str, int]]  # split -> id -> which of the values

    def of(self, split: str, ids: Sequence[str]) -> NDArray[np.int64]:
        """The values, as numbers, of these images of a split."""
        known = self.by_split[split]
        return np.array([known[sample] for sample in ids], dtype=np.int64)


def read(data: Dataset, name: str) -> Attribute:
    """The column of that name in every split; a missing value, or far too many values, is one line."""
    columns = {split: _texts(data[split].column(name), data[split].ids, name, split) for split in data.splits}
    values = sorted({value for column in columns.values() for value in column}, key=_order)
    if len(values) > MOST:
        raise UserError(
            f"data.attribute={name}: it has {len(values):,} values, such as {values[0]}; an attribute that "
            f"splits images into groups has at most {MOST}"
        )
    if len(values) < 2:
        raise UserError(f'data.attribute={name}: every image has the value "{values[0]}"; there is no group')
    code = {value: i for i, value in enumerate(values)}
    by_split = {
        split: {i: code[v] for i, v in zip(data[split].ids, column, strict=True)}
        for split, column in columns.items()
    }
    return Attribute(name, tuple(values), by_split)


def _texts(column: Sequence[Any], ids: Sequence[str], name: str, split: str) -> list[str]:
    lacking = [i for i, value in zip(ids, column, strict=True) if value is None or value != value]
    if lacking:
        raise UserError(
            f"data.attribute={name}: {len(lacking):,} images of {split} have no value, the first is "
            f'"{lacking[0]}"; give every image one, such as "unknown"'
        )
    return [str(value) for value in column]


def _order(value: str) -> tuple[bool, float, str]:
    """Numbers by size, before words."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


@dataclass(frozen=True)
class SampleGroups:
    """The group of each of n training images, of those groups that have any."""

    of: NDArray[np.int64]  # n, in 0..G-1
    names: tuple[str, ...]  # G
    empty: tuple[str, ...]  # groups without training images

    def counts(self, images: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """G: how many of these images (None: of all) each group has, at least 1: no weight is endless."""
        of = self.of if images is None else self.of[images]
        return np.maximum(np.bincount(of, minlength=len(self.names)), 1)

    def only(self, images: NDArray[np.int64]) -> SampleGroups:
        """The same of these images; groups that have none of them are left out."""
        present, of = np.unique(self.of[images], return_inverse=True)
        return SampleGroups(of.astype(np.int64), tuple(self.names[g] for g in present), self.empty)


def groups(
    how: str,
    attribute: Attribute,
    codes: NDArray[np.int64],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
) -> SampleGroups:
    """The groups of n images with these values and labels: by value, or by class and value (`both`)."""
    if how == "attribute":
        cells, names = codes, [f"{attribute.name}={value}" for value in attribute.values]
    else:
        cells = labels * len(attribute.values) + codes
        names = [f"{c}, {attribute.name}={value}" for c in class_names for value in attribute.values]
    present, compact = np.unique(cells, return_inverse=True)
    there = set(present.tolist())
    return SampleGroups(
        compact.astype(np.int64),
        tuple(names[i] for i in present.tolist()),
        tuple(name for i, name in enumerate(names) if i not in there),
    )
