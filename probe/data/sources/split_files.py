"""Files that belong to a split, by their names: train-*, test-* and perhaps validation-*."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from probe.data import split_names
from probe.errors import UserError

NUMBER = re.compile(r"[-_.]?(?P<shard>\d+)(-of-(?P<total>\d+))?(-[0-9a-f]+)?$")


def groups(files: Iterable[str], where: str, configuration: str | None = None) -> dict[str, list[str]]:
    """Files by split name: `data/train-00000-of-00002.parquet`, `default/train/0000.parquet` are `train`."""
    by_split: dict[str, dict[str, list[str]]] = {}
    for file in sorted(files):
        path = PurePosixPath(file)
        stem, folder = NUMBER.sub("", path.stem), path.parent
        if not stem:
            stem, folder = folder.name, folder.parent
        if configuration in (None, folder.as_posix(), folder.name):
            by_split.setdefault(stem, {}).setdefault(folder.as_posix(), []).append(file)
    for split, homes in by_split.items():
        if len(homes) > 1 and split_names.is_split(split):
            raise UserError(
                f"{where} holds several data sets ({', '.join(sorted(homes))}); choose one: the folder "
                "itself, or data.config=NAME (owner/name:NAME for the hub)"
            )
    return {split: files for split, homes in by_split.items() for files in homes.values()}


def check_complete(files: Iterable[str], where: str) -> None:
    """Raise when a file is missing: one of `-of-00002`, or one between `train-000` and `train-002`."""
    totals: dict[int, set[int]] = {}
    counted: dict[str, set[int]] = {}
    for file in files:
        path = PurePosixPath(file)
        match = NUMBER.search(path.stem)
        if match and match["total"]:
            totals.setdefault(int(match["total"]), set()).add(int(match["shard"]))
        elif match:
            counted.setdefault(f"{path.parent}/{path.stem[: match.start()]}", set()).add(int(match["shard"]))
    for total, shards in totals.items():
        if missing := sorted(set(range(total)) - shards):
            raise UserError(
                f"{where}: {len(missing)} of {total} files are missing, the first is number {missing[0]}"
            )
    for shards in counted.values():
        first, last = min(shards), max(shards)
        # numbers that begin elsewhere are not counted: years, for instance
        if first < 2 and len(shards) < (there := last - first + 1):
            gap = min(set(range(first, last)) - shards)
            raise UserError(
                f"{where}: files are numbered {first} to {last}, and {there - len(shards)} are missing, the "
                f"first is number {gap}; a pattern with braces says which are meant, if it is not missed"
            )


def tells_total(file: str) -> bool:
    """Does the name say how many files there are, as `train-00000-of-00002.parquet` does?"""
    match = NUMBER.search(PurePosixPath(file).stem)
    return bool(match and match["total"])
