"""k training images of every class, and no other label: an official validation split is left out too.

Draw 0, 1, ... are different images; each is the same on every machine.
"""

from __future__ import annotations

import numpy as np

from probe.data.dataset import Dataset
from probe.data.drawing import places
from probe.errors import UserError


def few_shot(data: Dataset, shots: int, draw: int = 0) -> Dataset:
    """`data` with `shots` training images of each class."""
    train = data["train"]
    if shots < 1:
        raise UserError(f"data.shots={shots}: a class needs at least one training image")
    short = np.flatnonzero(train.class_counts < shots)
    if len(short):
        name, there = train.class_names[short[0]], train.class_counts[short[0]]
        raise UserError(
            f'data.shots={shots}: class "{name}" has {there} training images ({len(short):,} classes have '
            "too few); ask for fewer, or leave classes out with data.subset"
        )
    order = np.lexsort((np.arange(len(train)), places(train, f"shots {draw}"), train.labels))
    first = np.cumsum(train.class_counts) - train.class_counts
    rank = np.empty(len(train), dtype=np.int64)
    rank[order] = np.arange(len(train)) - np.repeat(first, train.class_counts)
    note = f"{shots} training images of each class, draw {draw}"
    few = data.replace(name=data.name, note=note, train=train.subset(rank < shots, "train"))
    few.by_name.pop("val", None)  # it would be learnt from
    return few
