"""One parquet file of a split: which of its columns hold images and labels, and the small ones of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from probe.data.sources.parquet_reader import ImageTable, column_chunk
from probe.errors import UserError
from probe.system import safe_parquet
from probe.system.digest_index import file_state

LABEL_NAMES = ("label", "labels", "class", "target")  # tried when no column says that it holds classes


@dataclass(frozen=True)
class ParquetPart:
    """The small columns of one file, and where its images are."""

    file: ImageTable
    labels: pa.Array  # int64 or string
    ids: list[Any]  # the `id` column, None where it says nothing
    names: tuple[str, ...]  # declared class names, if any

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def textual(self) -> bool:
        return pa.types.is_string(self.labels.type)


def read_part(path: Path, image_hints: tuple[str, ...], label_hints: tuple[str, ...]) -> ParquetPart:
    """The small columns of a file; no two files of a split need to name or store them alike."""
    with safe_parquet.plain_errors(path):
        state = file_state(path)
        file = safe_parquet.opened(path)
        features = _features(file.schema_arrow)
        image = _image_column(file, features, image_hints, path)
        label = _label_column(file.schema_arrow, features, label_hints, path)
        with_id = "id" in file.schema_arrow.names and label != "id"
        columns = safe_parquet.columns(path, file, [label, "id"] if with_id else [label])
        labels = _plain(columns[label], path)
    _check_embedded(file, image, path)
    groups = tuple(file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups))
    where = ImageTable(path, groups, state, image)
    where.check_same()  # the columns were read by opening it again
    return ParquetPart(
        where,
        labels,
        safe_parquet.texts(columns["id"]) if with_id else [None] * len(labels),
        _declared(features.get(label, {}), path),
    )


def _plain(labels: pa.ChunkedArray, path: Path) -> pa.Array:
    """Labels as int64 or string, whatever integer or text type they were written as."""
    kind = labels.type.value_type if pa.types.is_dictionary(labels.type) else labels.type
    textual = safe_parquet.is_text(kind)
    if not (textual or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise UserError(f"{path}: labels are {kind}; a label is one integer or one string")
    plain = labels.cast(kind).cast(pa.string() if textual else pa.int64())
    return pa.concat_arrays(plain.chunks) if plain.num_chunks else pa.array([], plain.type)


def _features(schema: pa.Schema) -> dict[str, dict]:
    """What the `datasets` library wrote about the columns: their types and class names."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _declared(feature: dict, path: Path) -> tuple[str, ...]:
    """The class names that a label column declares, if it does."""
    names = feature.get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: the class names in its metadata are not a list of strings; write it again")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a class name stands twice in its metadata; give every class its own name")
    return tuple(names)


def _image_column(file: pq.ParquetFile, features: dict[str, dict], hints: tuple[str, ...], path: Path) -> str:
    """The leaf column that holds encoded images: by hint, by declared type, then by its shape."""
    schema = file.schema_arrow
    declared = [name for name, feature in features.items() if feature.get("_type") == "Image"]
    leaves = {field.name: leaf for field in schema if (leaf := _leaf(field)) is not None}
    for name in (*hints, *declared, *leaves):
        if name in leaves:
            safe_parquet.check_once(path, schema.names, [name])
            stored = [file.schema.column(i).path for i in range(len(file.schema))]
            safe_parquet.check_once(path, stored, [leaves[name]])  # "image.bytes" can be a plain name too
            return leaves[name]
    raise UserError(
        f"{path} has no image column (a struct with bytes, or binary); its columns: {_listed(schema)}"
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


def _label_column(schema: pa.Schema, features: dict[str, dict], hints: tuple[str, ...], path: Path) -> str:
    declared = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
    for name in (*hints, *declared, *LABEL_NAMES):
        if name in schema.names:
            return name
    raise UserError(f'{path} has no label column (call it "label"); its columns: {_listed(schema)}')


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names) or "none"


def _check_embedded(file: pq.ParquetFile, image: str, path: Path) -> None:
    """Some writers store the images' paths and leave their bytes null."""
    for group in range(file.metadata.num_row_groups):
        statistics = column_chunk(file, group, image).statistics
        rows = file.metadata.row_group(group).num_rows
        if statistics is not None and statistics.has_null_count and rows and statistics.null_count == rows:
            raise UserError(
                f"{path} holds no images in {image}, perhaps only paths; write it with the bytes embedded"
            )
