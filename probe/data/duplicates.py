"""Images that occur more than once in a data set, found by the digests that are known anyway.

    data.duplicates in result.json:
    {
      "train_test": {"count": test images whose bytes are also those of a training image (train or val),
                     "images": [{"test": id, "train": id}, ...]},
      "two_labels": {"count": images (by content) that have more than one class, in any split,
                     "images": [[{"split": ..., "id": ..., "class": ...}, ...], ...]},
      "within":     {"count": copies beyond the first of an image in one split, all splits together,
                     "images": [{"split": ..., "ids": [id, id, ...]}, ...]}
    }

Counts are complete; `images` has the first few. Equal pixels in other bytes (another encoder) are not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.data.dataset import Split
from probe.data.sources.image_folder import UNREADABLE

SHOWN = 5  # images of each kind that are listed
TEST = "test"


def find(splits: Mapping[str, Split], left_out: Iterable[str] = ()) -> dict[str, Any]:
    """The images that occur more than once, as above; `left_out` are ids of images that could not be read."""
    parts = list(splits.values())
    starts = np.cumsum([0, *map(len, parts)])
    skipped = frozenset(left_out)

    def copy(row: int) -> dict[str, str]:
        which = int(np.searchsorted(starts, row, side="right")) - 1
        split, at = parts[which], row - int(starts[which])
        return {"split": split.name, "id": split.ids[at], "class": split.class_names[split.labels[at]]}

    found = _Found()
    for rows in _groups(np.concatenate([split.digests for split in parts])):
        copies = [one for one in map(copy, rows.tolist()) if one["id"] not in skipped]
        if len(copies) > 1:
            found.add(copies)
    return found.as_json()


class _Found:
    """The three lists; groups of equal images are added in the order of their first image."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[Any]] = {"train_test": [], "two_labels": [], "within": []}
        self.counts = dict.fromkeys(self.kinds, 0)

    def add(self, copies: list[dict[str, str]]) -> None:
        by_split: dict[str, list[str]] = {}
        for copy in copies:
            by_split.setdefault(copy["split"], []).append(copy["id"])
        trained = [copy["id"] for copy in copies if copy["split"] != TEST]
        if trained:
            tested = by_split.get(TEST, [])
            self._note("train_test", len(tested), ({"test": i, "train": trained[0]} for i in tested))
        if len({copy["class"] for copy in copies}) > 1:
            self._note("two_labels", 1, [copies[:SHOWN]])
        for split, ids in by_split.items():
            if len(ids) > 1:
                self._note("within", len(ids) - 1, [{"split": split, "ids": ids[:SHOWN]}])

    def _note(self, kind: str, count: int, images: Iterable[Any]) -> None:
        self.counts[kind] += count
        room = SHOWN - len(self.kinds[kind])
        self.kinds[kind] += [image for _, image in zip(range(room), images, strict=False)]

    def as_json(self) -> dict[str, Any]:
        return {kind: {"count": self.counts[kind], "images": self.kinds[kind]} for kind in self.kinds}


def _groups(digests: NDArray[np.uint8]) -> Iterator[NDArray[np.int64]]:
    """Groups of two or more rows with equal digests (N x 32 bytes), in the order of their first row.

    The first eight bytes are sorted alone, which for a million rows takes a tenth of a second; only rows that
    agree in them are compared whole.
    """
    words = np.ascontiguousarray(digests).view(np.uint64)
    order = np.argsort(words[:, 0], kind="stable")
    same = words[order[1:], 0] == words[order[:-1], 0]
    alike = order[np.concatenate([[False], same]) | np.concatenate([same, [False]])]
    unreadable = np.frombuffer(UNREADABLE, dtype=np.uint64)
    alike = alike[(words[alike] != unreadable).any(axis=1)]
    if not len(alike):
        return
    alike = np.sort(alike)
    _, group = np.unique(words[alike], axis=0, return_inverse=True)
    by_group = np.argsort(group.ravel(), kind="stable")
    parts = np.split(alike[by_group], np.flatnonzero(np.diff(group.ravel()[by_group])) + 1)
    yield from sorted((part for part in parts if len(part) > 1), key=lambda part: int(part[0]))


def remark(duplicates: Mapping[str, Any] | None) -> str | None:
    """One line for people; None where every image occurs once, or none were looked for (old results)."""
    if duplicates is None:
        return None
    leaks, ambiguous, copies = (duplicates[kind]["count"] for kind in ("train_test", "two_labels", "within"))
    parts = []
    if leaks:
        first = duplicates["train_test"]["images"][0]["test"]
        parts.append(f'{leaks:,} in both test and train (the first is "{first}")')
    if ambiguous:
        first = duplicates["two_labels"]["images"][0][0]["id"]
        parts.append(f'{ambiguous:,} under two labels (the first is "{first}")')
    if copies:
        parts.append(f"{copies:,} repeated within a split")
    return f"identical images: {', '.join(parts)}; see data.duplicates in result.json" if parts else None
