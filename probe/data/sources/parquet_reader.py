"""Random access to the encoded images inside parquet files, without copying them anywhere.

Parquet is made for scans: to get one value, a whole row group must be read. Two facts make it work for
shuffled access all the same. Today's writers make row groups of 100 MB but leave image columns uncompressed
(JPEG does not shrink), so an image's bytes stand in the file as they are: one scan of a group finds where,
and from then on an image is one `pread`, with no memory held. Older writers compress, but make row groups of
100 rows: the most recently used ones are kept decompressed, within a budget.
Nothing is guessed: a place in the file counts only if the bytes there equal the value that was read.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from probe.errors import UserError
from probe.system import safe_parquet
from probe.system.digest_index import FileState, file_state

T = TypeVar("T")

HELD = 256_000_000  # bytes of decompressed row groups a process keeps
TOO_LARGE = 2_000_000_000  # bytes of one compressed row group that cannot be read at random
SCAN_ROWS = 256  # rows decoded at a time while scanning
MOST_OPEN = 64  # files of each kind that a reader keeps open


@dataclass(frozen=True)
class ImageTable:
    """One parquet file of a split: what is needed to find a row in it."""

    path: Path
    groups: tuple[int, ...]  # rows in each row group
    state: FileState  # before it was opened, to notice that it was replaced
    column: str  # that holds its images: "image.bytes" of a struct, or "image" of plain binary

    def check_same(self) -> None:
        """Raise if another file stands there now: its rows are not those whose labels were read."""
        with safe_parquet.plain_errors(self.path):
            now = file_state(self.path)
        if not now.same_file(self.state):
            raise UserError(f"{self.path} has changed while it was being read; start again")


def scan(file: pq.ParquetFile, group: int, column: str) -> Iterator[pa.Buffer | bytes]:
    """The values of a binary column, a few rows in memory at a time; a null is empty bytes."""
    for batch in file.iter_batches(SCAN_ROWS, row_groups=[group], columns=[column], use_threads=False):
        for value in _binary(batch.column(0)):
            yield value.as_buffer() if value.is_valid else b""


def _binary(values: pa.Array) -> pa.Array:
    return pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values


class RowReader:
    """Reads single rows of some tables: the open files of one process, and where their values are."""

    def __init__(self, files: list[ImageTable]) -> None:
        self.process = os.getpid()
        self._files = files
        self._lock = threading.Lock()
        # A file that is dropped is closed with its last reference: another thread may still be reading it.
        self._raw: LRUCache[BinaryIO] = LRUCache(most_open(), self._open_raw)  # bytes by offset
        self._tables: LRUCache[pq.ParquetFile] = LRUCache(most_open(), self._open_table)  # rows by group
        # by file and group: (start, length) of every row, None where rows cannot be addressed
        self._located: dict[tuple[int, int], np.ndarray | None] = {}
        self._held: OrderedDict[tuple[int, int], pa.ChunkedArray] = OrderedDict()

    def value(self, f: int, group: int, row: int) -> bytes:
        """The bytes of row `row` in row group `group` of table number `f`; a null is empty bytes."""
        place = (f, group)
        located = self._located.get(place)
        if located is None:
            with self._lock, safe_parquet.plain_errors(self._files[f].path):
                if place not in self._located:
                    self._located[place] = locate(self._files[f], self._tables[f], group)
                located = self._located[place]
                if located is None:
                    return self._group(place)[row].as_py() or b""
        start, length = located[row].tolist()
        with safe_parquet.plain_errors(self._files[f].path):
            raw = self._raw[f]
            return os.pread(raw.fileno(), length, start)

    def _open_raw(self, f: int) -> BinaryIO:
        self._files[f].check_same()
        return self._files[f].path.open("rb", buffering=0)

    def _open_table(self, f: int) -> pq.ParquetFile:
        self._files[f].check_same()
        return safe_parquet.opened(self._files[f].path, memory_map=True)

    def _group(self, place: tuple[int, int]) -> pa.ChunkedArray:
        """A whole row group in memory, decompressed."""
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        file, wanted = self._tables[place[0]], self._files[place[0]].column
        size = column_chunk(file, place[1], wanted).total_uncompressed_size
        if size > TOO_LARGE:
            raise UserError(
                f"{self._files[place[0]].path}: a compressed row group of {size / 1e9:.1f} GB cannot be read "
                "at random; write the file again with compression='none' or row_group_size=1000"
            )
        column = file.read_row_group(place[1], columns=[wanted], use_threads=False).column(0)
        self._held[place] = pa.chunked_array([_binary(chunk) for chunk in column.chunks])
        while len(self._held) > 1 and sum(group.nbytes for group in self._held.values()) > HELD:
            self._held.popitem(last=False)
        return self._held[place]


class LRUCache(Generic[T]):
    """Values made on demand, of which the `most` recently used are kept."""

    def __init__(self, most: int, make: Callable[[int], T]) -> None:
        self._most, self._make = most, make
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, T] = OrderedDict()

    def __getitem__(self, number: int) -> T:
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._make(number)
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(number)
            return self._kept[number]


def most_open() -> int:
    """How many files a reader keeps open: two kinds for each of three splits stay far below the limit."""
    try:
        import resource
    except ImportError:  # not POSIX
        return MOST_OPEN
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, limit // 16))


def locate(where: ImageTable, file: pq.ParquetFile, group: int) -> np.ndarray | None:
    """Where each value of a row group stands in the file: N x (start, length); None if one does not.

    Values follow one another, a length field (and at times a page header) between them, so each is searched
    for from the end of the one before and nearly always found at once.
    """
    chunk = column_chunk(file, group, where.column)
    if chunk.compression != "UNCOMPRESSED":
        return None
    begin = min(o for o in (chunk.dictionary_page_offset, chunk.data_page_offset) if o is not None)
    end = begin + chunk.total_compressed_size
    found = np.zeros((file.metadata.row_group(group).num_rows, 2), dtype=np.int64)
    at = begin
    with where.path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for row, value in enumerate(scan(file, group, where.column)):
            start = content.find(value, at, end)
            if start < 0:  # a repeated image stored once, or another encoding
                return None
            found[row] = start, len(value)
            at = start + len(value)
    return found


def column_chunk(file: pq.ParquetFile, group: int, column: str) -> pq.ColumnChunkMetaData:
    """What the footer says about one column of a row group."""
    row_group = file.metadata.row_group(group)
    chunks = (row_group.column(i) for i in range(row_group.num_columns))
    return next(chunk for chunk in chunks if chunk.path_in_schema == column)
