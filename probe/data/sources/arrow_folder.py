"""Arrow files: what `save_to_disk` of the `datasets` library wrote, or train-*.arrow and test-*.arrow.

They are mapped into memory, so any row is reached without reading others and nothing is copied. What a file
says about itself is believed only as far as it has been checked: `datasets` would parse its metadata, open
the files that `state.json` names wherever they are, and follow the paths of images without bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from backbones import reading
from probe.data import split_names
from probe.data.dataset import Split
from probe.data.request import Request
from probe.data.sources.arrow_images import ArrowFile, ArrowImages, opened
from probe.data.sources.parquet_columns import image_column, no_images
from probe.data.sources.table_columns import TablePart, declared_names, label_column, plain_labels
from probe.data.sources.table_splits import table_splits
from probe.errors import UserError
from probe.system import safe_parquet
from probe.system.digest_index import file_state

SPLITS, STATE = "dataset_dict.json", "state.json"  # of `DatasetDict.save_to_disk` and of each split


@dataclass(frozen=True)
class ArrowPart(TablePart):
    """The small columns of one file, and where its images are."""

    file: ArrowFile


def is_saved(folder: Path) -> bool:
    """Did `save_to_disk` write it?"""
    return (folder / SPLITS).is_file() or (folder / STATE).is_file()


def read_saved(root: Path, ask: Request) -> dict[str, Split]:
    """The splits of a folder that `save_to_disk` wrote."""
    found = saved_files(root)
    return read_files(root, split_names.choose(found, ask.want, str(root), ask.must), ask)


def saved_files(root: Path) -> dict[str, list[str]]:
    """The files that `save_to_disk` wrote, by split; one data set without splits is train."""
    if not (root / SPLITS).is_file():
        return {"train": _saved_files(root, "")}
    names = _json(root / SPLITS).get("splits")
    if not isinstance(names, list) or not all(_plain_name(name) for name in names):
        raise UserError(f"{root / SPLITS} does not name its splits; save the data again")
    return {name: _saved_files(root, name) for name in names}


def _saved_files(root: Path, split: str) -> list[str]:
    """The files of a split, in the order that its state gives them."""
    state = root / split / STATE
    listed = _json(state).get("_data_files")
    rows = listed if isinstance(listed, list) else []
    names = [str(one.get("filename") or "") if isinstance(one, dict) else "" for one in rows]
    if not names or not all(map(_plain_name, names)):
        raise UserError(f"{state} does not name its files; save the data again")
    missing = [name for name in names if not (root / split / name).exists()]
    if missing:
        raise UserError(
            f"{root / split}: {len(missing)} of {len(names)} files are missing, the first is {missing[0]}"
        )
    return [(Path(split) / name).as_posix() for name in names]


def _plain_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(reading.text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return found if isinstance(found, dict) else {}


def read_files(root: Path, chosen: Mapping[str, Sequence[str]], ask: Request) -> dict[str, Split]:
    """The splits in Arrow files that are known by split."""
    parts = {name: [_part(root / file, ask) for file in files] for name, files in chosen.items()}
    return table_splits(
        parts, ask, root, lambda mine, ids: ArrowImages([p.file for p in mine], ids, ask.cache)
    )


def _part(path: Path, ask: Request) -> ArrowPart:
    with safe_parquet.plain_errors(path, "cannot read {path} as Arrow: {reason}"):
        state = file_state(path)
        table = opened(path)
        image, label = image_column(table.schema, ask, path), label_column(table.schema, ask, path)
        with_id = "id" in table.schema.names and label != "id"
        safe_parquet.check_once(path, table.schema.names, [image, label, *(["id"] if with_id else [])])
        labels = plain_labels(_checked(table[label]), path)
        ids = _checked(table["id"]).to_pylist() if with_id else [None] * len(labels)
    where = ArrowFile(path, len(labels), state, image)
    where.check_same()
    if len(labels) and where.values(table).null_count == len(labels):
        raise no_images(path, image)
    return ArrowPart(path, labels, ids, declared_names(table.schema, label, ask, path), where)


def _checked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column.validate(full=True)  # offsets that point elsewhere would be followed
    return column
