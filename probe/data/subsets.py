"""A part of a data set: some of its classes, or the samples that a file names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from backbones import reading
from probe.data.dataset import Split
from probe.errors import UserError, nearest


def choose(splits: Mapping[str, Split], subset: str | Path | Sequence[str]) -> dict[str, Split]:
    """`splits` with only the classes that are named ("cat,dog" or a list), or the ids in a file (one a line).

    Classes without a training image are left out, and the others keep their order.
    """
    if isinstance(subset, (str, Path)) and reading.expanded(subset).is_file():
        return _ids(splits, reading.expanded(subset))
    names = [n.strip() for n in str(subset).split(",")] if isinstance(subset, (str, Path)) else list(subset)
    if not any(names):
        raise UserError("data.subset names no class; give some (a,b), a file of ids, or leave it out")
    return _classes(splits, [name for name in names if name])


def _classes(splits: Mapping[str, Split], names: Sequence[str]) -> dict[str, Split]:
    known = splits["train"].class_names
    for name in names:
        if name not in known:
            raise UserError(
                f'data.subset: there is no class "{name}"{nearest(name, known)}, and no file of that name'
            )
    kept = [k for k, name in enumerate(known) if name in set(names)]
    return {split: found.of_classes(kept) for split, found in splits.items()}


def _ids(splits: Mapping[str, Split], path: Path) -> dict[str, Split]:
    try:
        wanted = {line.strip() for line in reading.text(path).splitlines() if line.strip()}
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read data.subset {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    unknown = sorted(wanted.difference(*(split.ids for split in splits.values())))
    if unknown or not wanted:
        raise UserError(
            f'{path}: {len(unknown):,} of its {len(wanted):,} ids are not in the data, the first is "'
            f'{next(iter(unknown), "")}"; a line is one id, as in predictions.parquet'
        )
    found = {}
    for name, split in splits.items():
        rows = np.flatnonzero([sample in wanted for sample in split.ids])
        if len(rows) or name == "train":
            found[name] = split.subset(rows, name)
    kept = np.flatnonzero(found["train"].class_counts).tolist()
    return {name: split.of_classes(kept) for name, split in found.items()}
