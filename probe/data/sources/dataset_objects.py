"""`Dataset` and `DatasetDict` objects of the `datasets` library, as they are in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from probe.data import split_names
from probe.data.dataset import Split
from probe.data.images import Images
from probe.data.request import Request
from probe.data.sources.parquet_columns import image_column, no_images
from probe.data.sources.table_columns import TablePart, declared_names, label_column, plain_labels
from probe.data.sources.table_splits import table_splits
from probe.errors import UserError

if TYPE_CHECKING:
    import datasets

ROWS = 256  # read at a time while hashing


@dataclass(frozen=True)
class ObjectPart(TablePart):
    """The small columns of a `datasets.Dataset`, and the object itself."""

    rows: datasets.Dataset
    image: str


class ObjectImages(Images):
    """The image column of a `datasets.Dataset`; its bytes only, since decoding would open any path."""

    def __init__(self, rows: datasets.Dataset, image: str, ids: list[str]) -> None:
        self._rows = rows.with_format("arrow")
        self._image = image
        self._ids = ids

    def stored(self, row: int) -> bytes:
        return self._values(self._rows[row])[0].as_py() or b""

    def where(self, row: int) -> str:
        return f'"{self._ids[row]}" of the data set in memory'

    def hashed(self) -> np.ndarray:
        found = [
            hashlib.sha256(value.as_buffer() if value.is_valid else b"").digest()
            for batch in self._rows.select_columns([self._image]).iter(ROWS)
            for value in self._values(batch)
        ]
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 32)

    def columns(self) -> list[str]:
        return [name for name in self._rows.column_names if name != self._image]

    def column(self, name: str) -> list[Any]:
        return self._rows.select_columns([name])[:][name].to_pylist()

    def _values(self, table: pa.Table) -> pa.ChunkedArray:
        column = table[self._image]
        return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column


def read(given: datasets.Dataset | Mapping[str, datasets.Dataset], ask: Request) -> dict[str, Split]:
    """The splits of a `DatasetDict`, or one `Dataset` as train."""
    found = dict(given) if isinstance(given, Mapping) else {"train": given}
    for name, rows in found.items():
        if not hasattr(rows, "with_format") or not hasattr(rows, "__len__"):
            raise UserError(
                f"{name} is a {type(rows).__name__}; give a datasets.Dataset (a stream has no random access: "
                "load it without streaming=True)"
            )
    chosen = split_names.choose(found, ask.want, "the data set in memory", ask.must)
    parts = {name: [_part(name, rows, ask)] for name, rows in chosen.items()}
    return table_splits(parts, ask, Path(), lambda mine, ids: ObjectImages(mine[0].rows, mine[0].image, ids))


def _part(name: str, rows: datasets.Dataset, ask: Request) -> ObjectPart:
    schema, path = rows.features.arrow_schema, Path(name)
    image, label = image_column(schema, ask, path), label_column(schema, ask, path)
    with_id = "id" in schema.names and label != "id"
    small = rows.with_format("arrow").select_columns([label, "id"] if with_id else [label])[:]
    labels = plain_labels(small[label], path)
    part = ObjectPart(
        path,
        labels,
        small["id"].to_pylist() if with_id else [None] * len(labels),
        declared_names(schema, label, ask, path),
        rows,
        image,
    )
    if len(rows) and ObjectImages(rows, image, [""]).stored(0) == b"":
        values = ObjectImages(rows, image, [])._values(rows.with_format("arrow").select_columns([image])[:])
        if values.null_count == len(rows):
            raise no_images(path, image)
    return part
