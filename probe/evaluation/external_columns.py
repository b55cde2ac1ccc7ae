"""The columns of a predictions file from elsewhere, each checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from probe.errors import UserError
from probe.system import safe_parquet


def _text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))


def _list_of(inner: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    return lambda kind: any(is_one(kind) for is_one in lists) and inner(kind.value_type)


# What a column may hold, in words and as a check of its type; the first two are required.
COLUMNS: Mapping[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "id": ("text or integers", lambda kind: _text(kind) or kinds.is_integer(kind)),
    "label": ("class names or integers", lambda kind: _text(kind) or kinds.is_integer(kind)),
    "prediction": ("class names or integers", lambda kind: _text(kind) or kinds.is_integer(kind)),
    "scores": ("lists of numbers", _list_of(_number)),
    "method": ("text", _text),
    "seed": ("integers", kinds.is_integer),
    "probability": ("numbers", _number),
    "top5": ("lists of integers", _list_of(kinds.is_integer)),
}


def read(path: Path) -> tuple[dict[str, list[Any]], Mapping[bytes, bytes]]:
    """The known columns as Python values, without nulls, and the file's metadata."""
    with safe_parquet.plain_errors(path, "cannot read predictions from {path}: {reason}; write it again"):
        file = safe_parquet.opened(path)
        present = file.schema_arrow.names
        table = safe_parquet.columns(path, file, [name for name in COLUMNS if name in present])
    if not {"id", "label"} <= set(present) or not {"prediction", "scores"} & set(present):
        raise UserError(
            f"{path}: needs the columns id, label and prediction (or scores); has {sorted(present)}"
        )
    if table.num_rows == 0:
        raise UserError(f"{path}: holds no predictions")
    return {name: _checked(table, name, path) for name in table.column_names}, table.schema.metadata or {}


def _checked(table: pa.Table, name: str, path: Path) -> list[Any]:
    column = table[name]
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    words, fits = COLUMNS[name]
    if not fits(kind):
        raise UserError(f"{path}: the column {name} holds {kind}; it must hold {words}")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise UserError(f"{path}: row {row}: {name} is missing; give every row a value")
    values = safe_parquet.texts(column)
    row = next((r for r, v in enumerate(values) if isinstance(v, list) and None in v), None)
    if row is not None:
        raise UserError(f"{path}: row {row}: a value in {name} is missing")
    return values
