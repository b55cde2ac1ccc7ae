"""What the rest of the toolkit sees of data: a `Dataset` of named `Split`s of labelled images."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from probe.data.images import Images
from probe.errors import UserError, nearest

if TYPE_CHECKING:
    from probe.data.test_cut import TestCut


class Split:
    """Labelled images in a fixed order: `split[i]` is (RGB image, label).

    labels      int64, read-only
    ids         unique and stable: the path inside an image folder, or the `id` column or file:row of parquet
    fingerprint changes when an image's stored bytes, a label, an id or the order changes, and only then
    """

    def __init__(
        self,
        name: str,
        images: Images,
        labels: np.ndarray,
        ids: list[str],
        class_names: tuple[str, ...],
        rows: np.ndarray | None = None,
        of: str = "",
    ) -> None:
        self.name = name
        self.of = of  # the data set's name, for people; nothing depends on it
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.labels.flags.writeable = False
        self.ids = ids
        self.class_names = class_names
        self._images = images
        self._rows = rows  # positions in `images`; None is all of them in order

    @property
    def title(self) -> str:
        """`pets train`: the name in progress bars and cache listings."""
        return f"{self.of} {self.name}".strip()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        label = int(self.labels[index])  # raises IndexError past the end, so that iteration stops
        position = range(len(self))[index]
        row = position if self._rows is None else int(self._rows[position])
        return self._images.rgb(row), label

    def stored(self, index: int) -> bytes:
        """The stored content of an image, not decoded; OSError where it cannot be read."""
        position = range(len(self))[index]
        return self._images.stored(position if self._rows is None else int(self._rows[position]))

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {len(self):,} images, {len(self.class_names)} classes)"

    @cached_property
    def digests(self) -> np.ndarray:
        """sha256 of every image's stored content, in the split's order: N x 32 bytes."""
        found = self._images.digests()
        return found if self._rows is None else found[self._rows]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the ordered (id, content digest, label); contents are really hashed.

        From then on an image whose bytes have another digest is refused when it is read.
        """
        total = hashlib.sha256()
        for sample, digest, label in zip(self.ids, self.digests, self.labels.tolist(), strict=True):
            total.update(f"{len(sample)}:{sample}\0{label}\0".encode())
            total.update(digest)
        return total.hexdigest()

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Images of each class, int64."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def columns(self) -> list[str]:
        """The names that `column` knows."""
        return self._images.columns()

    def column(self, name: str) -> list[Any]:
        """The values of a further column (camera, hospital), one for each image, None where there is none.

        Columns are those of a table, or of a `metadata.csv` beside the images whose column `file_name` names
        them.
        """
        if name not in self.columns:
            there = f"it has {', '.join(self.columns)}" if self.columns else "it has none beside its images"
            near = nearest(name, self.columns)
            raise UserError(f'{self.title or "the split"} has no column "{name}"{near}; {there}')
        found = self._images.column(name)
        return found if self._rows is None else [found[row] for row in self._rows.tolist()]

    def subset(self, indices: Sequence[int] | np.ndarray, name: str) -> Split:
        """The chosen samples in the given order, as a split called `name`; no image is read."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        ids = [self.ids[i] for i in chosen.tolist()]
        check_unique(ids, name)
        rows = np.arange(len(self)) if self._rows is None else self._rows
        return Split(name, self._images, self.labels[chosen], ids, self.class_names, rows[chosen], self.of)

    def of_classes(self, kept: Sequence[int]) -> Split:
        """The samples of some classes, which are then all classes there are, in the given order."""
        number = np.full(len(self.class_names), -1)
        number[list(kept)] = np.arange(len(kept))
        part = self.subset(number[self.labels] >= 0, self.name)
        names = tuple(self.class_names[k] for k in kept)
        return Split(self.name, part._images, number[part.labels], part.ids, names, part._rows, self.of)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "digests"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.labels.flags.writeable = False  # pickling forgets it


@dataclass(frozen=True, repr=False)
class Dataset:
    """Named splits that share one list of classes: `data["train"]`, `"val" in data`."""

    name: str
    class_names: tuple[str, ...]
    metric: str  # "accuracy" or "mean_per_class": for model selection and the headline
    templates: tuple[str, ...]  # zero-shot prompts, {} stands for the class name
    by_name: dict[str, Split]
    source: str  # where it was read: a folder, or hub id @ revision
    note: str = ""
    test_cut: TestCut | None = None  # where the test split was cut from train
    thinned: str = ""  # what was taken away to make a long tail; a reader of the numbers must know it
    prompt_names: tuple[str, ...] = ()  # what prompts call the classes, where that is not their names

    @property
    def names_in_prompts(self) -> tuple[str, ...]:
        """K names that stand for {} in templates."""
        return self.prompt_names or self.class_names

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits: train, test and perhaps val."""
        return tuple(self.by_name)

    def __getitem__(self, split: str) -> Split:
        if split not in self.by_name:
            raise UserError(f'{self.name} has no split "{split}"{nearest(split, self.by_name)}')
        return self.by_name[split]

    def __contains__(self, split: object) -> bool:
        return split in self.by_name

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split):,}" for name, split in self.by_name.items())
        return f"Dataset({self.name!r}, {len(self.class_names)} classes, {sizes})"

    def replace(self, *, name: str, note: str, **splits: Split) -> Dataset:
        """The same data set with another name and note, and some of its splits replaced."""
        note = "; ".join(part for part in (self.note, note) if part)
        return replace(self, name=name, note=note, by_name={**self.by_name, **splits})


def check_unique(ids: Sequence[str], where: str) -> None:
    """Raise when an id occurs twice: results are addressed by id."""
    if len(set(ids)) < len(ids):
        twice = [sample for sample, count in Counter(ids).items() if count > 1]
        raise UserError(
            f'{where}: {len(twice):,} ids occur more than once, the first is "{twice[0]}"; make them unique'
        )
