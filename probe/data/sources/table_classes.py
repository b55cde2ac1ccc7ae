"""One list of classes for all files of a data set, and every file's labels as numbers of that list.

A number means what its own file says it means: files that declare the same names in another order are mapped
by name. Without names it means the place in the one list, which is only safe where all files agree on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from probe.data.sources.table_columns import TablePart
from probe.errors import UserError

SHOWN = 5  # class names in a message


@dataclass(frozen=True)
class ClassList:
    """The classes in their order, and the file that decided it."""

    names: tuple[str, ...]
    source: Path
    by_number: bool  # may a number without names be understood as a place in the list?

    def numbers(self, part: TablePart, split: str, ids: Sequence[str]) -> NDArray[np.int64]:
        """A file's labels as int64 numbers of this list; `ids` name its rows in messages."""
        path, labels = part.path, part.labels
        if labels.null_count:
            first = pc.index(labels.is_null(), True).as_py()
            raise UserError(f'{path}: {labels.null_count:,} labels are missing, the first of "{ids[first]}"')
        if part.textual:
            found = pc.index_in(labels, value_set=pa.array(self.names, pa.string()))
            if found.null_count:
                self._differ(path, split, set(pc.unique(labels).to_pylist()), only_here=True)
            return found.to_numpy(zero_copy_only=False).astype(np.int64)
        if part.names and set(part.names) != set(self.names):
            self._differ(path, split, set(part.names))
        if not part.names and not self.by_number:
            raise UserError(
                f"{path} labels its images with numbers, but not every file has the classes of {self.source} "
                "in one order; write their names into it, or texts as labels"
            )
        values = labels.to_numpy(zero_copy_only=False).astype(np.int64)
        _check_range(values, len(self.names), path, ids)
        if part.names and part.names != self.names:
            place = {name: k for k, name in enumerate(self.names)}
            return np.array([place[name] for name in part.names], dtype=np.int64)[values]
        return values

    def _differ(self, path: Path, split: str, own: set[str], *, only_here: bool = False) -> None:
        """Raise: the file has other classes than the list's own."""
        same_split = path.parent == self.source.parent and split == "train"
        sides = (self.source.name, path.name) if same_split else ("train", split)
        missing = [] if only_here else [name for name in self.names if name not in own]
        parts = [
            f"only in {side}: {', '.join(names[:SHOWN])}"
            for side, names in zip(sides, (missing, sorted(own - set(self.names))), strict=True)
            if names
        ]
        raise UserError(
            f"{self.source} and {path} do not have the same classes: {'; '.join(parts)}; "
            "give all files one list"
        )


def class_list(parts: Mapping[str, Sequence[TablePart]], official: int | None) -> ClassList:
    """Train's list: declared names (its first file's), else the sorted texts, else the numbers in use.

    `official` is how many there are where a registered data set stores no names.
    """
    train = parts["train"]
    first = next((part for part in train if part.names), None)
    source = (first or train[0]).path
    if first is not None:
        alike = all(part.names in ((), first.names) for mine in parts.values() for part in mine)
        return ClassList(first.names, source, by_number=alike)
    texts = [part.labels for part in train if part.textual]
    if texts:
        found = {name for labels in texts for name in pc.unique(labels.drop_null()).to_pylist()}
        return ClassList(tuple(sorted(found)), source, by_number=False)
    number = _largest(train, official)
    return ClassList(tuple(map(str, range(number))), source, by_number=True)


def _largest(train: Sequence[TablePart], official: int | None) -> int:
    """How many classes numbers without names mean."""
    images = sum(map(len, train))
    if not images:
        return 0
    largest = max(pc.max(part.labels).as_py() or 0 for part in train)
    if largest >= max(official or 0, images):  # every class has an image, so it cannot be a class
        more = f" and {len(train) - 1} more" if len(train) > 1 else ""
        raise UserError(
            f"{train[0].path}{more}: there is a label {largest:,} but only {images:,} images; "
            "labels count the classes from 0, each with at least one image"
        )
    return max(official or 0, largest + 1)


def _check_range(values: NDArray[np.int64], classes: int, path: Path, ids: Sequence[str]) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if len(wrong):
        raise UserError(
            f'{path}: label {values[wrong[0]]} of "{ids[wrong[0]]}" is out of range; there are '
            f"{classes} classes, 0 to {classes - 1} ({len(wrong):,} such labels; -1 means unlabelled: "
            "data.splits.test=NAME chooses another split)"
        )
