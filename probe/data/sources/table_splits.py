"""Tables that are known by split become splits with one list of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np

from probe.data.dataset import Split
from probe.data.images import Images
from probe.data.request import Request
from probe.data.sources.table_classes import class_list
from probe.data.sources.table_columns import TablePart, sample_ids

P = TypeVar("P", bound=TablePart)


def table_splits(
    parts: Mapping[str, list[P]], ask: Request, root: Path, images: Callable[[list[P], list[str]], Images]
) -> dict[str, Split]:
    """The splits of tables that are known by split; `images` makes a split's images of its parts and ids."""
    shared = class_list(parts, ask.classes)
    splits = {}
    for name, mine in parts.items():
        ids = sample_ids(mine, [_place(part.path, root) for part in mine])
        starts = accumulate((len(part) for part in mine), initial=0)
        labels = [
            shared.numbers(part, name, ids[s : s + len(part)]) for s, part in zip(starts, mine, strict=False)
        ]
        everything = np.concatenate(labels) if labels else np.zeros(0, dtype=np.int64)
        splits[name] = Split(name, images(mine, ids), everything, ids, shared.names)
    return splits


def _place(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
