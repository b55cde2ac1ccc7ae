"""Parquet files from anywhere, read within limits that their footer tells before anything is read.

Equal values are stored once: a file of 400 kB can hold 20 million rows, and a column of a few kB can hold
gigabytes. So what a file would become in memory is asked before it is read, and texts stay shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backbones import reading
from probe.errors import UserError

FREE = 10_000  # rows that any file may have
LEAST = 1  # byte of a file for each row beyond them
VALUES = 256  # values of a column for each byte: lists of scores that are nearly all 0
DECODED = 2 << 30  # bytes of the columns that are read into memory
LONGEST = 16 << 10  # bytes of a class name or an id; a path has 4096


@contextmanager
def plain_errors(path: Path, told: str = "cannot read {path} as parquet: {reason}") -> Iterator[None]:
    """Whatever the reader of a damaged or missing file says, as one line that names it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(told.format(path=path, reason=reason)) from error


def opened(path: Path, **options: Any) -> pq.ParquetFile:
    """A parquet file whose number of rows is possible; OSError or ArrowException where it is none."""
    size = reading.regular(path)
    file = pq.ParquetFile(path, **options)
    rows = file.metadata.num_rows
    groups = sum(file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups))
    if rows != groups:
        raise UserError(f"{path} is damaged: {rows:,} rows are said to be in it, and {groups:,} are")
    if rows > FREE + size // LEAST:
        raise UserError(f"{path}: {rows:,} rows in {size:,} bytes is no data; write it again")
    return file


def columns(path: Path, file: pq.ParquetFile, names: Sequence[str]) -> pa.Table:
    """Some top-level columns of an opened file, texts as dictionaries; each must be there once."""
    check_once(path, file.schema_arrow.names, names)
    values, size = _declared(file.metadata, names)
    if size > DECODED or values > 100 * FREE + VALUES * reading.regular(path):
        told = f"{values:,} values, {size / 1e9:,.1f} GB"
        raise UserError(f"{path}: the columns {', '.join(names)} are too large ({told}); write it again")
    # A dictionary holds a text once, however many rows have it.
    shared = [name for name in names if is_text(file.schema_arrow.field(name).type)]
    table = pq.ParquetFile(path, metadata=file.metadata, read_dictionary=shared).read(columns=list(names))
    for name in names:
        _check_texts(path, name, table[name])
    if table.num_rows != file.metadata.num_rows:
        raise UserError(f"{path} is damaged: it has fewer rows than it says; copy or download it again")
    return table


def check_once(path: Path, present: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a column that stands twice: nobody knows which one is meant."""
    for name in names:
        if present.count(name) > 1:
            raise UserError(f'{path} has {present.count(name)} columns called "{name}"; keep one of them')


def texts(column: pa.ChunkedArray) -> list[Any]:
    """Python's values of a column; equal ones of a dictionary are one object."""
    found: list[Any] = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            known = chunk.dictionary.to_pylist()
            found += [None if i is None else known[i] for i in chunk.indices.to_pylist()]
        else:
            found += chunk.to_pylist()
    return found


def is_text(kind: pa.DataType) -> bool:
    """Strings in any of Arrow's layouts; polars writes views."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _declared(metadata: pq.FileMetaData, names: Sequence[str]) -> tuple[int, int]:
    """Values and bytes of some columns, as the footer declares them."""
    values = size = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for chunk in (group.column(i) for i in range(group.num_columns)):
            if any(chunk.path_in_schema == n or chunk.path_in_schema.startswith(f"{n}.") for n in names):
                values += chunk.num_values
                size += max(chunk.total_uncompressed_size, 0)
    return values, size


def _check_texts(path: Path, name: str, column: pa.ChunkedArray) -> None:
    for chunk in column.chunks:
        inner = chunk.dictionary if pa.types.is_dictionary(chunk.type) else None
        if inner is None or not is_text(inner.type):
            continue
        longest = pc.max(pc.binary_length(inner)).as_py() or 0
        if longest > LONGEST:
            raise UserError(f"{path}: a text of {longest:,} bytes in {name}; at most {LONGEST:,} are read")
