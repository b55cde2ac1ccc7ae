"""One parquet file of a split: which of its columns hold images and labels, and the small ones of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from probe.data.request import Request
from probe.data.sources.parquet_reader import ImageTable, column_chunk
from probe.data.sources.table_columns import (
    TablePart,
    declared_names,
    features,
    label_column,
    listed,
    named_column,
    plain_labels,
)
from probe.errors import UserError
from probe.system import safe_parquet
from probe.system.digest_index import file_state


@dataclass(frozen=True)
class ParquetPart(TablePart):
    """The small columns of one file, and where its images are."""

    file: ImageTable


def read_part(path: Path, ask: Request) -> ParquetPart:
    """The small columns of a file; no two files of a split need to name or store them alike."""
    with safe_parquet.plain_errors(path):
        state = file_state(path)
        file = safe_parquet.opened(path)
        schema = file.schema_arrow
        image = _image_column(file, ask, path)
        label = label_column(schema, ask, path)
        with_id = "id" in schema.names and label != "id"
        columns = safe_parquet.columns(path, file, [label, "id"] if with_id else [label])
        labels = plain_labels(columns[label], path)
    _check_embedded(file, image, path)
    groups = tuple(file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups))
    where = ImageTable(path, groups, state, image)
    where.check_same()  # the columns were read by opening it again
    return ParquetPart(
        path,
        labels,
        safe_parquet.texts(columns["id"]) if with_id else [None] * len(labels),
        declared_names(schema, label, ask, path),
        where,
    )


def _image_column(file: pq.ParquetFile, ask: Request, path: Path) -> str:
    """The leaf column that holds encoded images."""
    schema = file.schema_arrow
    name = image_column(schema, ask, path)
    safe_parquet.check_once(path, schema.names, [name])
    leaf = _leaf(schema.field(name))
    assert leaf is not None
    stored = [file.schema.column(i).path for i in range(len(file.schema))]
    safe_parquet.check_once(path, stored, [leaf])  # "image.bytes" can be a plain name too
    return leaf


def image_column(schema: pa.Schema, ask: Request, path: Path) -> str:
    """The column of encoded images: as the user names it, by hint, by declared type, then by its shape."""
    leaves = {field.name for field in schema if _leaf(field) is not None}
    if ask.image_named is not None:
        name = named_column(ask.image_named, schema.names, path, "data.image")
        if name not in leaves:
            kind = schema.field(schema.names.index(name)).type
            raise UserError(f'{path}: "{name}" (data.image) holds {kind}, not encoded images')
        return name
    declared = [name for name, feature in features(schema).items() if feature.get("_type") == "Image"]
    for name in (*ask.image, *declared, *(field.name for field in schema)):
        if name in leaves:
            return name
    raise UserError(
        f"{path} has no image column (a struct with bytes, or binary); its columns: {listed(schema.names)}"
    )


def _leaf(field: pa.Field) -> str | None:
    if pa.types.is_struct(field.type):
        position = field.type.get_field_index("bytes")
        return (
            f"{field.name}.bytes" if position >= 0 and _is_binary(field.type.field(position).type) else None
        )
    return field.name if _is_binary(field.type) else None


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _check_embedded(file: pq.ParquetFile, image: str, path: Path) -> None:
    """Some writers store the images' paths and leave their bytes null."""
    for group in range(file.metadata.num_row_groups):
        statistics = column_chunk(file, group, image).statistics
        rows = file.metadata.row_group(group).num_rows
        if statistics is not None and statistics.has_null_count and rows and statistics.null_count == rows:
            raise no_images(path, image)


def no_images(path: Path, image: str) -> UserError:
    """The error for rows that have no bytes; a path in them is never opened."""
    return UserError(
        f"{path} holds no images in {image}, perhaps only paths; write it with the bytes embedded"
    )
