"""A folder of parquet files in the hub's form: train-*, test-* and perhaps validation-*.parquet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path, PurePosixPath

import numpy as np

from probe.data import split_names
from probe.data.dataset import Split
from probe.data.sources.parquet_classes import ClassList, class_list
from probe.data.sources.parquet_columns import ParquetPart, read_part
from probe.data.sources.parquet_images import ParquetImages
from probe.errors import UserError

NUMBER = re.compile(r"[-_.]?(?P<shard>\d+)(-of-(?P<total>\d+))?(-[0-9a-f]+)?$")
DEPTHS = ("*.parquet", "*/*.parquet", "*/*/*.parquet")  # in the folder, in data/, in configuration/split/
MANY = 0.01  # share of repeated ids from which on the `id` column is not believed


def files_below(root: Path) -> list[str]:
    """Relative paths of the parquet files in a folder."""
    # Below train/ there may be a million images: no parquet file is looked for among them.
    depths = DEPTHS[:2] if (root / "train").is_dir() else DEPTHS
    found = (path.relative_to(root) for depth in depths for path in root.glob(depth))
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


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
        if len(homes) > 1 and any(split in words for words in split_names.WORDS.values()):
            raise UserError(
                f"{where} holds several data sets ({', '.join(sorted(homes))}); choose one: the folder "
                "itself, or owner/name:configuration for the hub"
            )
    return {split: files for split, homes in by_split.items() for files in homes.values()}


def check_complete(files: Iterable[str], where: str) -> None:
    """Raise when `train-00000-of-00002` is there and `train-00001-of-00002` is not."""
    seen: dict[int, set[int]] = {}
    for file in files:
        match = NUMBER.search(PurePosixPath(file).stem)
        if match and match["total"]:
            seen.setdefault(int(match["total"]), set()).add(int(match["shard"]))
    for total, shards in seen.items():
        if missing := sorted(set(range(total)) - shards):
            raise UserError(
                f"{where}: {len(missing)} of {total} files are missing, the first is number {missing[0]}"
            )


def tells_total(file: str) -> bool:
    """Does the name say how many files there are, as `train-00000-of-00002.parquet` does?"""
    match = NUMBER.search(PurePosixPath(file).stem)
    return bool(match and match["total"])


def read(
    root: Path,
    want: Mapping[str, tuple[str, ...]],
    *,
    strict: bool,
    image: tuple[str, ...] = (),
    label: tuple[str, ...] = (),
    classes: int | None = None,
    configuration: str | None = None,
    cache: str | Path | None = None,
) -> dict[str, Split]:
    """The splits of a folder of parquet files.

    `image` and `label` are column hints, and `classes` is their official number where names are not stored;
    digests are remembered in `cache`.
    """
    found = split_names.choose(
        groups(files_below(root), str(root), configuration), want, str(root), strict=strict
    )
    parts: dict[str, list[ParquetPart]] = {}
    for name, files in found.items():
        check_complete(files, f"{root} ({name})")
        parts[name] = [read_part(root / file, image, label) for file in files]
    shared = class_list(parts, classes)
    return {name: _split(name, mine, shared, root, cache) for name, mine in parts.items()}


def _split(
    name: str, parts: list[ParquetPart], classes: ClassList, root: Path, cache: str | Path | None
) -> Split:
    ids = _ids(parts, root)
    starts = accumulate((len(part.labels) for part in parts), initial=0)
    labels = [
        classes.numbers(part, name, ids[s : s + len(part.labels)])
        for s, part in zip(starts, parts, strict=False)
    ]
    images = ParquetImages([part.file for part in parts], ids, cache)
    return Split(name, images, np.concatenate(labels), ids, classes.names)


def _ids(parts: list[ParquetPart], root: Path) -> list[str]:
    """The `id` column where a row has one, else its place; the place is added where ids repeat.

    CIFAR-100 has one file name twice. When more than a few repeat, they are left as they are, to be refused:
    the column is not an id, or the rows were written twice.
    """
    files = [part.file.path.relative_to(root).as_posix() for part in parts]
    places = [(file, row) for file, part in zip(files, parts, strict=True) for row in range(len(part))]
    given = [value for part in parts for value in part.ids]
    ids = [
        f"{file}:{row}" if value is None else str(value)
        for value, (file, row) in zip(given, places, strict=True)
    ]
    counts = Counter(ids)
    repeated = sum(count for count in counts.values() if count > 1)
    if not repeated or repeated > MANY * len(ids):
        return ids
    return [f"{i} ({file}:{row})" if counts[i] > 1 else i for i, (file, row) in zip(ids, places, strict=True)]
