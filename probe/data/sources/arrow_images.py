"""The images of a split that is stored in Arrow files, which are mapped into memory."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backbones import reading
from probe.data.images import Images
from probe.errors import UserError
from probe.system import digest_index, safe_parquet
from probe.system.digest_index import FileState, file_state

TOLD = "cannot read {path} as Arrow: {reason}"
MAGIC = b"ARROW1"  # of the format with a footer; `datasets` writes streams


@dataclass(frozen=True)
class ArrowFile:
    """One file of a split: what is needed to find a row in it."""

    path: Path
    rows: int
    state: FileState  # before it was opened, to notice that it was replaced
    column: str  # that holds its images

    def check_same(self) -> None:
        """Raise if another file stands there now: its rows are not those whose labels were read."""
        with safe_parquet.plain_errors(self.path, TOLD):
            now = file_state(self.path)
        if not now.same_file(self.state):
            raise UserError(f"{self.path} has changed while it was being read; start again")

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """The encoded images, checked: no offset points outside."""
        column = table[self.column]
        column.validate(full=True)
        chunks = [pc.struct_field(c, "bytes") if pa.types.is_struct(c.type) else c for c in column.chunks]
        return pa.chunked_array(chunks, None if chunks else pa.binary())


def opened(path: Path) -> pa.Table:
    """The table in a file, mapped; OSError or ArrowException where it is not one.

    A mapped table is no larger than its file, unless its buffers are compressed: those would be unpacked into
    memory, whatever their size.
    """
    size, held, batches = reading.regular(path), 0, []
    with pa.memory_map(str(path)) as source:  # the map stays as long as its buffers, the descriptor does not
        footed = size > len(MAGIC) and source.read(len(MAGIC)) == MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if footed else pa.ipc.open_stream(source)
        number = reader.num_record_batches if footed else None
        for batch in (reader.get_batch(i) for i in range(number)) if number is not None else reader:
            held += batch.nbytes
            if held > size or batch.num_rows > safe_parquet.FREE + size:
                raise UserError(
                    f"{path}: its buffers are compressed, or larger than the file; write it again without "
                    "compression, as save_to_disk does, or as parquet"
                )
            batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


class ArrowImages(Images):
    """The image column of some Arrow files, as one long list."""

    def __init__(self, files: list[ArrowFile], ids: list[str], cache: str | Path | None = None) -> None:
        self._files = files
        self._ids = ids
        self._cache = cache  # where digests are remembered
        self._starts = list(accumulate((file.rows for file in files), initial=0))
        self._mapped: dict[int, tuple[list[int], list[pa.Array]]] = {}  # by file: starts of chunks, chunks

    def stored(self, row: int) -> bytes:
        f = bisect_right(self._starts, row) - 1
        starts, chunks = self._map(f)
        within = row - self._starts[f]
        which = bisect_right(starts, within) - 1
        return chunks[which][within - starts[which]].as_py() or b""

    def where(self, row: int) -> str:
        return f'"{self._ids[row]}" in {self._files[bisect_right(self._starts, row) - 1].path}'

    def hashed(self) -> np.ndarray:
        found: dict[Path, bytes] = {}
        for column in dict.fromkeys(file.column for file in self._files):  # nearly always one
            files = {file.path: file for file in self._files if file.column == column}
            values = digest_index.digests(
                list(files),
                partial(_digests_of, files=files),
                lengths=[32 * file.rows for file in files.values()],
                key=column,
                cache=self._cache,
            )
            found.update(zip(files, values, strict=True))
        for file in self._files:
            file.check_same()
        in_order = b"".join(found[file.path] for file in self._files)
        return np.frombuffer(in_order, dtype=np.uint8).reshape(-1, 32)

    def forget(self, row: int) -> None:
        file = self._files[bisect_right(self._starts, row) - 1]
        digest_index.forget(file.path, key=file.column, cache=self._cache)

    def columns(self) -> list[str]:
        tables = [self._table(file).schema.names for file in self._files] or [[]]
        images = {file.column for file in self._files}
        return [n for n in tables[0] if n not in images and all(n in names for names in tables)]

    def column(self, name: str) -> list[Any]:
        found: list[Any] = []
        for file in self._files:
            values = self._table(file)[name]
            values.validate(full=True)
            found += values.to_pylist()
        return found

    def _map(self, f: int) -> tuple[list[int], list[pa.Array]]:
        # Two threads may both map a file; either map will do.
        if f not in self._mapped:
            file = self._files[f]
            values = file.values(self._table(file))
            self._mapped[f] = list(accumulate(map(len, values.chunks), initial=0))[:-1], values.chunks
        return self._mapped[f]

    @staticmethod
    def _table(file: ArrowFile) -> pa.Table:
        file.check_same()
        with safe_parquet.plain_errors(file.path, TOLD):
            return opened(file.path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": {}}


def _digests_of(path: Path, *, files: dict[Path, ArrowFile]) -> bytes:
    with safe_parquet.plain_errors(path, TOLD):
        values = files[path].values(opened(path))
        return b"".join(
            hashlib.sha256(value.as_buffer() if value.is_valid else b"").digest()
            for chunk in values.chunks
            for value in chunk
        )
