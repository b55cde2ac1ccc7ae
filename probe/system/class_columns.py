"""Parquet files whose columns of class numbers carry the names of the classes, as `datasets` reads them.

`load_dataset("parquet", data_files=...)` takes a file's features from the key "huggingface" of its schema.
The library itself is not imported: writing a few lines of JSON needs none of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa


def named(table: pa.Table, class_names: Sequence[str], columns: Collection[str], **about: str) -> pa.Table:
    """The table, with the names of the classes that numbers in `columns` stand for, and what `about` says.

    >>> named(table, ("cat", "dog"), ["label", "prediction"])
    """
    features = {
        field.name: _feature(field.type, class_names, field.name in columns) for field in table.schema
    }
    return table.replace_schema_metadata(
        {
            "class_names": json.dumps(list(class_names)),
            "huggingface": json.dumps({"info": {"features": features}}),
            **about,
        }
    )


def _feature(kind: pa.DataType, class_names: Sequence[str], is_class: bool) -> dict[str, Any]:
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        return {
            "feature": _feature(kind.value_type, class_names, is_class),
            "length": length,
            "_type": "List",
        }
    if is_class:
        return {"names": list(class_names), "_type": "ClassLabel"}
    return {"dtype": DTYPES.get(kind, str(kind)), "_type": "Value"}


DTYPES = {pa.float32(): "float32", pa.float64(): "float64", pa.float16(): "float16"}  # pyarrow says "float"
