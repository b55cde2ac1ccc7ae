"""Images without labels, wherever they are: files, folders, patterns, tables of paths or images, and shards.

What they are is counted before anything is decoded; their bytes are read one by one, when they are needed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from probe.data.sources.image_folder import EXTENSIONS, LARGEST, image_files
from probe.errors import UserError
from probe.system.digest_index import file_state

if TYPE_CHECKING:  # a photo by itself needs no reader of tables
    from probe.data.sources.arrow_images import ArrowFile
    from probe.data.sources.tar_shards import Shard

PATTERN = set("*?[")
ROWS = 64  # of a table with images in it that are held at once


@dataclass(frozen=True)
class StoredImage:
    """An image by its name; `content` is there for those inside a table or a shard."""

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
        self._parts: list[Part] = [part for source in sources for part in _parts(source)]
        if not len(self):
            raise UserError(f"no images in {', '.join(sources)}; give {FORMS}")

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[StoredImage]:
        for part in self._parts:
            if isinstance(part, list):
                yield from (StoredImage(str(path), path) for path in part)
            else:
                yield from part


def _parts(source: str) -> Iterator[Part]:
    path = reading.expanded(source)
    if path.is_dir():
        files = list(image_files(path))
        yield files
        # a table beside image files says more about them, or is what an earlier call wrote
        yield from () if files else (_table(table) for table in _tables(path))
    elif path.suffix.lower() in TABLES and path.exists():
        yield _table(path)
    elif not path.exists() and PATTERN & set(source):
        found = sorted(glob.iglob(os.fspath(path), recursive=True))  # noqa: PTH207 - takes absolute patterns
        yield [Path(name) for name in found if name.lower().endswith(EXTENSIONS)]
    else:
        yield [path]  # what is wrong with it is told when it is read


def _tables(folder: Path) -> list[Path]:
    """The tables or shards of a folder, of the first kind that it has, as a data set's are found."""
    from probe.data.sources import arrow_folder, kinds

    if arrow_folder.is_saved(folder):
        saved = arrow_folder.saved_files(folder)
        return [folder / file for files in saved.values() for file in files]
    found = kinds.table_files(folder)
    return [folder / file for file in next((found[kind] for kind in TABLES if found.get(kind)), [])]


def _table(path: Path) -> Part:
    return TABLES[path.suffix.lower()](path)


def _paths(path: Path) -> list[Path]:
    """The paths in a CSV or JSON file."""
    from probe.data.sources import path_tables

    table = path_tables.table_of(path)
    return _listed(path, table[_column(table.schema.names, path)].to_pylist())


def _listed(path: Path, values: Sequence[Any]) -> list[Path]:
    bad = next((row for row, value in enumerate(values, 1) if not isinstance(value, str) or not value), None)
    if bad is not None:
        raise UserError(f"{path}: row {bad} has no path of an image; give every row one")
    return [path.parent / value for value in values]


def _column(names: Sequence[str], path: Path) -> str:
    from probe.data.sources.path_tables import IMAGE_NAMES
    from probe.data.sources.table_columns import first_named

    found = first_named(IMAGE_NAMES, names)
    if found is None:
        raise UserError(
            f"{path} has no column of images; call it path or image (it has {', '.join(names[:6]) or 'none'})"
        )
    return found


def _parquet(path: Path) -> list[Path] | ImageColumn:
    from probe.system import safe_parquet

    with safe_parquet.plain_errors(path):
        file = safe_parquet.opened(path)
        name = _column(file.schema_arrow.names, path)
        kind = file.schema_arrow.field(name).type
        if safe_parquet.is_text(kind):
            return _listed(path, safe_parquet.texts(safe_parquet.columns(path, file, [name])[name]))
    _check_images(path, name, kind)
    return ImageColumn(path, name, file.metadata.num_rows)


def _check_images(path: Path, name: str, kind: Any) -> None:
    import pyarrow as pa

    if not (pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(f"{path}: the column {name} holds {kind}; it must hold paths or images")


def _arrow(path: Path) -> list[Path] | ArrowColumn:
    from probe.data.sources import arrow_images
    from probe.system import safe_parquet

    with safe_parquet.plain_errors(path, arrow_images.TOLD):
        state = file_state(path)
        table = arrow_images.opened(path)
        name = _column(table.schema.names, path)
        safe_parquet.check_once(path, table.schema.names, [name])
        if safe_parquet.is_text(table.schema.field(name).type):
            table[name].validate(full=True)  # offsets that point elsewhere would be followed
            return _listed(path, table[name].to_pylist())
    _check_images(path, name, table.schema.field(name).type)
    return ArrowColumn(arrow_images.ArrowFile(path, table.num_rows, state, name))


def _tar(path: Path) -> TarMembers:
    from probe.data.sources import tar_shards

    return TarMembers(*tar_shards.image_files(path))


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


@dataclass(frozen=True)
class ArrowColumn:
    """The same of an Arrow file, which is mapped into memory."""

    file: ArrowFile

    def __len__(self) -> int:
        return self.file.rows

    def __iter__(self) -> Iterator[StoredImage]:
        from probe.data.sources.arrow_images import ArrowImages

        images = ArrowImages([self.file], [])
        for row in range(self.file.rows):
            yield StoredImage(f"{self.file.path.name}:{row}", content=images.stored(row))


@dataclass(frozen=True)
class TarMembers:
    """The images of a tar file; each is read at its place."""

    shard: Shard
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[StoredImage]:
        for name, content in zip(self.names, self.shard.contents(), strict=True):
            yield StoredImage(f"{self.shard.path.name}:{name}", content=content)


Part = list[Path] | ImageColumn | ArrowColumn | TarMembers
# By the ending of file names; the first kind that a folder has is the one that is read.
TABLES: dict[str, Callable[[Path], Part]] = {
    ".parquet": _parquet,
    ".tar": _tar,
    ".arrow": _arrow,
    ".csv": _paths,
    ".tsv": _paths,
    ".jsonl": _paths,
    ".json": _paths,
}
FORMS = f"image files, folders, patterns, or tables and shards ({', '.join(TABLES)})"
