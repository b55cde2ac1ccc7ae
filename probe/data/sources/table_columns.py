"""One table of a split, whatever file it stands in: which column holds labels, and what they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from probe.data.request import Request
from probe.errors import UserError, nearest
from probe.system import safe_parquet

LABEL_NAMES = ("label", "labels", "class", "target")  # tried when no column says that it holds classes
MANY = 0.01  # share of repeated ids beyond which the `id` column is not believed


@dataclass(frozen=True)
class TablePart:
    """The small columns of one table."""

    path: Path  # for messages
    labels: pa.Array  # int64 or string
    ids: list[Any]  # the `id` column, None where it says nothing
    names: tuple[str, ...]  # declared class names, if any

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def textual(self) -> bool:
        """Are the labels class names, not numbers?"""
        return pa.types.is_string(self.labels.type)


def plain_labels(labels: pa.ChunkedArray, path: Path) -> pa.Array:
    """Labels as int64 or string, whatever integer or text type they were written as."""
    kind = labels.type.value_type if pa.types.is_dictionary(labels.type) else labels.type
    textual = safe_parquet.is_text(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        raise UserError(
            f"{path}: labels are {kind}, several for each image; a label is one integer or one string: "
            "choose a column of them with data.label=NAME"
        )
    if not (textual or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise UserError(f"{path}: labels are {kind}; a label is one integer or one string")
    plain = labels.cast(kind).cast(pa.string() if textual else pa.int64())
    return pa.concat_arrays(plain.chunks) if plain.num_chunks else pa.array([], plain.type)


def features(schema: pa.Schema) -> dict[str, dict]:
    """What the `datasets` library wrote about the columns: their types and class names."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in found.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def declared_names(schema: pa.Schema, label: str, ask: Request, path: Path) -> tuple[str, ...]:
    """The class names that the label column declares, or a README for it, if there are any."""
    names = features(schema).get(label, {}).get("names") or list(ask.declared.get(label, ()))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: the class names in its metadata are not a list of strings; write it again")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a class name stands twice in its metadata; give every class its own name")
    return tuple(names)


def label_column(schema: pa.Schema, ask: Request, path: Path) -> str:
    """The column of labels: as the user names it, by hint, by declared type, then by its name."""
    if ask.label_named is not None:
        return named_column(ask.label_named, schema.names, path, "data.label")
    declared = [name for name, feature in features(schema).items() if feature.get("_type") == "ClassLabel"]
    known = first_named((*ask.label, *declared, *LABEL_NAMES), schema.names)
    if known is not None:
        return known
    raise UserError(
        f'{path} has no label column (call it "label", or say data.label=NAME); its columns: '
        f"{listed(schema.names)}"
    )


def first_named(words: Iterable[str], present: Sequence[str]) -> str | None:
    """The column that has the first of these names; where none has, the case of letters does not matter."""
    words = list(words)
    small = {name.lower(): name for name in reversed(present)}
    return next((w for w in words if w in present), next((small[w] for w in words if w in small), None))


def named_column(name: str, present: Sequence[str], path: Path, key: str) -> str:
    """`name`, if it is there."""
    if name not in present:
        raise UserError(
            f'{path} has no column "{name}" ({key}){nearest(name, present)}; its columns: {listed(present)}'
        )
    return name


def listed(names: Iterable[str]) -> str:
    """Column names, for a message."""
    return ", ".join(names) or "none"


def sample_ids(parts: Sequence[TablePart], places: Sequence[str]) -> list[str]:
    """The `id` column where a row has one, else its place; the place is added where ids repeat.

    `places` are those of the parts' files, `file:row` names a row. CIFAR-100 has one name twice. When
    more than a few repeat, they are left as they are, to be refused: the column is not an id, or the rows
    were written twice.
    """
    rows = [(place, row) for place, part in zip(places, parts, strict=True) for row in range(len(part))]
    given = [value for part in parts for value in part.ids]
    ids = [
        f"{place}:{row}" if value is None else str(value)
        for value, (place, row) in zip(given, rows, strict=True)
    ]
    counts = Counter(ids)
    repeated = sum(count for count in counts.values() if count > 1)
    if not repeated or repeated > MANY * len(ids):
        return ids
    return [f"{i} ({place}:{row})" if counts[i] > 1 else i for i, (place, row) in zip(ids, rows, strict=True)]
