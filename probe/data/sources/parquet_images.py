"""The images of a split that is stored in parquet files."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from probe.data.images import Images
from probe.data.sources.parquet_reader import ImageTable, RowReader, scan
from probe.system import digest_index, safe_parquet


class ParquetImages(Images):
    """The image column of some parquet files, as one long list."""

    def __init__(self, files: list[ImageTable], ids: list[str], cache: str | Path | None = None) -> None:
        self._files = files
        self._ids = ids
        self._cache = cache  # where digests are remembered
        self._places = [(f, g) for f, file in enumerate(files) for g in range(len(file.groups))]
        self._starts = list(accumulate((files[f].groups[g] for f, g in self._places), initial=0))
        self._reader: RowReader | None = None

    def stored(self, row: int) -> bytes:
        f, group, within = self._place(row)
        return self._open().value(f, group, within)

    def where(self, row: int) -> str:
        return f'"{self._ids[row]}" in {self._files[self._place(row)[0]].path}'

    def hashed(self) -> np.ndarray:
        found: dict[Path, bytes] = {}
        for column in dict.fromkeys(file.column for file in self._files):  # nearly always one
            rows = {file.path: sum(file.groups) for file in self._files if file.column == column}
            values = digest_index.digests(
                list(rows),
                partial(_digests_of, column=column),
                lengths=[32 * n for n in rows.values()],
                key=column,
                cache=self._cache,
            )
            found.update(zip(rows, values, strict=True))
        for file in self._files:
            file.check_same()
        in_order = b"".join(found[file.path] for file in self._files)
        return np.frombuffer(in_order, dtype=np.uint8).reshape(-1, 32)

    def columns(self) -> list[str]:
        first, *others = [_names(file) for file in self._files] or [[]]
        return [name for name in first if all(name in names for names in others)]

    def column(self, name: str) -> list[Any]:
        found: list[Any] = []
        for table in self._files:
            with safe_parquet.plain_errors(table.path):
                file = safe_parquet.opened(table.path)
                found += safe_parquet.texts(safe_parquet.columns(table.path, file, [name])[name])
            table.check_same()
        return found

    def forget(self, row: int) -> None:
        file = self._files[self._place(row)[0]]
        digest_index.forget(file.path, key=file.column, cache=self._cache)

    def _place(self, row: int) -> tuple[int, int, int]:
        """File, row group and row within it."""
        which = bisect_right(self._starts, row) - 1
        return *self._places[which], row - self._starts[which]

    def _open(self) -> RowReader:
        # One reader per process: locks must not cross a fork. Two threads may both make one; either will do.
        if self._reader is None or self._reader.process != os.getpid():
            self._reader = RowReader(self._files)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def _names(table: ImageTable) -> list[str]:
    """The columns of a file, but for the images."""
    with safe_parquet.plain_errors(table.path):
        names = safe_parquet.opened(table.path).schema_arrow.names
    table.check_same()
    return [name for name in names if name != table.column.removesuffix(".bytes")]


def _digests_of(path: Path, *, column: str) -> bytes:
    with safe_parquet.plain_errors(path):
        file = safe_parquet.opened(path, memory_map=True)
        groups = range(file.metadata.num_row_groups)
        return b"".join(hashlib.sha256(value).digest() for g in groups for value in scan(file, g, column))
