"""Images without labels, wherever they are: files, folders, patterns, and tables of paths or of images.

What they are is counted before anything is decoded; their bytes are read one by one, when they are needed.
"""

from __future__ import annotations

import csv
import glob
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones import reading
from probe.data.sources.image_folder import EXTENSIONS, LARGEST, image_files
from probe.errors import UserError

PATHS = ("path", "image", "file", "file_name", "filename", "image_path")  # columns of paths, in this order
TABLES = (".csv", ".tsv", ".parquet")
PATTERN = set("*?[")
LARGEST_TABLE = 1 << 30  # bytes of a CSV file
ROWS = 64  # of a table with images in it that are held at once


@dataclass(frozen=True)
class StoredImage:
    """An image by its name; `content` is there for those inside a table."""

    name: str
    path: Path | None = None
    content: bytes | None = None

    def read(self) -> bytes:
        """The stored bytes; OSError where they cannot be read."""
        if self.path is not None:
            return reading.content(self.path, LARGEST)
        return self.content or b""


class Unlabelled:
    """`len()` images; iterating gives a `StoredImage` for each, in the order they were named."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._parts: list[list[Path] | ImageColumn] = [part for source in sources for part in _parts(source)]
        if not len(self):
            raise UserError(f"no images in {', '.join(sources)}; give files, folders, patterns or tables")

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[StoredImage]:
        for part in self._parts:
            if isinstance(part, ImageColumn):
                yield from part
            else:
                yield from (StoredImage(str(path), path) for path in part)


def _parts(source: str) -> Iterator[list[Path] | ImageColumn]:
    path = reading.expanded(source)
    if path.is_dir():
        yield list(image_files(path))
    elif path.suffix.lower() in TABLES and path.exists():
        yield _table(path)
    elif not path.exists() and PATTERN & set(source):
        found = sorted(glob.iglob(os.fspath(path), recursive=True))  # noqa: PTH207 - takes absolute patterns
        yield [Path(name) for name in found if name.lower().endswith(EXTENSIONS)]
    else:
        yield [path]  # what is wrong with it is told when it is read


def _table(path: Path) -> list[Path] | ImageColumn:
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    try:
        lines = io.StringIO(reading.content(path, LARGEST_TABLE).decode("utf-8-sig"), newline="")
        rows = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        column = _column(next(rows, []), path)
        return [path.parent / row[column] for row in rows if row]
    except (OSError, UnicodeDecodeError, csv.Error, IndexError) as error:
        raise UserError(f"cannot read {path} as a table: {error}; save it as CSV in UTF-8") from error


def _column(names: Sequence[str], path: Path) -> int:
    known = [name.strip().lower() for name in names]
    for name in PATHS:
        if name in known:
            return known.index(name)
    raise UserError(
        f"{path} has no column of images; call it path or image (it has {', '.join(names[:6]) or 'none'})"
    )


def _parquet(path: Path) -> list[Path] | ImageColumn:
    import pyarrow as pa

    from probe.system import safe_parquet

    with safe_parquet.plain_errors(path):
        file = safe_parquet.opened(path)
        name = file.schema_arrow.names[_column(file.schema_arrow.names, path)]
        kind = file.schema_arrow.field(name).type
        if safe_parquet.is_text(kind):
            values = safe_parquet.texts(safe_parquet.columns(path, file, [name])[name])
            if None in values:
                raise UserError(f"{path}: row {values.index(None)} has no {name}; give every row one")
            return [path.parent / value for value in values]
    if not (pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(f"{path}: the column {name} holds {kind}; it must hold paths or images")
    return ImageColumn(path, name, file.metadata.num_rows)


@dataclass(frozen=True)
class ImageColumn:
    """A column of stored images, as `datasets` writes it; a few rows are in memory at a time."""

    table: Path
    column: str
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[StoredImage]:
        from probe.system import safe_parquet

        row = 0
        with safe_parquet.plain_errors(self.table):
            file = safe_parquet.opened(self.table)
            for batch in file.iter_batches(batch_size=ROWS, columns=[self.column]):
                for value in batch.column(0).to_pylist():
                    yield self._image(value, row)
                    row += 1

    def _image(self, value: Any, row: int) -> StoredImage:
        known = value if isinstance(value, dict) else {"bytes": value}
        # a path beside no bytes may name any file of this machine, and is not followed
        return StoredImage(f"{known.get('path') or self.table.name}:{row}", content=known.get("bytes"))
