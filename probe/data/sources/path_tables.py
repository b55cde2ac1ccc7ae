"""A table of paths and labels: CSV, JSON or a DataFrame. Paths are relative to the file.

CSV is read as text: guessed types would turn the class "007" into 7 and the country "NA" into nothing. JSON
is read by the `datasets` library, as a stream that leaves nothing on disk.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backbones import reading
from backbones.errors import reason
from probe.data import split_names
from probe.data.dataset import Split
from probe.data.request import Request
from probe.data.sources.image_folder import EXTENSIONS, FolderImages
from probe.data.sources.list_files import check_images
from probe.data.sources.table_columns import (
    TablePart,
    first_named,
    label_column,
    listed,
    named_column,
    plain_labels,
)
from probe.data.sources.table_splits import table_splits
from probe.errors import UserError
from probe.system import safe_parquet

LARGEST = 1 << 30  # bytes of one table
IMAGE_NAMES = ("image", "file_name", "filename", "file", "path", "filepath", "image_path", "img")
SPLIT = "split"  # a column whose values name the split of each row
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
COMMAS = {".csv": ",;\t", ".tsv": "\t"}  # what may stand between the cells
# Of a folder of images, as `datasets` writes it. Where classes are folders it says more about the images: see
# `metadata_csv`; else it has the labels.
METADATA = ("metadata.csv", "metadata.jsonl")


@dataclass(frozen=True)
class PathPart(TablePart):
    """The rows of one table that belong to a split."""

    table: pa.Table
    files: list[str]  # of the images, below the data folder


class ListedImages(FolderImages):
    """Image files that the rows of some tables name; the tables' columns stand beside them."""

    def __init__(self, root: Path, parts: Sequence[PathPart], cache: str | Path | None) -> None:
        super().__init__(root, [file for part in parts for file in part.files], cache)
        self._tables = [part.table for part in parts]

    def columns(self) -> list[str]:
        first, *others = [table.column_names for table in self._tables] or [[]]
        return [name for name in first if all(name in names for names in others)]

    def column(self, name: str) -> list[Any]:
        values = [value for table in self._tables for value in table[name].to_pylist()]
        return [None if value == "" else value for value in values]  # an empty cell says nothing


def read_files(root: Path, found: Mapping[str, Sequence[str]], ask: Request) -> dict[str, Split]:
    """The splits in tables that are known by split, or of one table whose column `split` tells them."""
    tables = {name: [(root / file, table_of(root / file)) for file in files] for name, files in found.items()}
    return read_tables(tables, root, ask)


def read_tables(
    tables: Mapping[str, Sequence[tuple[Path, pa.Table]]], root: Path, ask: Request
) -> dict[str, Split]:
    """The same of tables in memory; each comes with the path that its own paths are relative to."""
    if list(tables) == ["train"] and all(_split_column(table) for _, table in tables["train"]):
        tables = _by_column(tables["train"], ask)
    parts = {name: [_part(*table, root, ask) for table in mine] for name, mine in tables.items()}
    for name, mine in parts.items():
        for part in mine:
            check_images(root, part.files, part.path, f"the paths of {name} are relative to it")
    return table_splits(parts, ask, root, lambda mine, ids: ListedImages(root, mine, ask.cache))


def _split_column(table: pa.Table) -> str | None:
    return first_named((SPLIT,), table.column_names)


def _by_column(
    tables: Sequence[tuple[Path, pa.Table]], ask: Request
) -> dict[str, list[tuple[Path, pa.Table]]]:
    found: dict[str, list[tuple[Path, pa.Table]]] = {}
    for path, table in tables:
        words = table[_split_column(table)].cast(pa.string()).fill_null("")
        for word in pc.unique(words).to_pylist():
            if not word:
                row = pc.index(words, "").as_py() + 1
                raise UserError(f'{path}: row {row} has no "{SPLIT}"; write train, val or test into each row')
            found.setdefault(word, []).append((path, table.filter(pc.equal(words, word))))
    return split_names.choose(found, ask.want, f'{tables[0][0]} (column "{SPLIT}")', ask.must)


def table_of(path: Path) -> pa.Table:
    """The table in a CSV or JSON file."""
    with safe_parquet.plain_errors(path, "cannot read the table {path}: {reason}"):
        reading.regular(path, LARGEST)
        return _csv(path) if path.suffix.lower() in COMMAS else _json(path)


def _csv(path: Path) -> pa.Table:
    from pyarrow import csv

    with path.open("rb") as file:
        header = file.readline(1 << 16)
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"cannot read the table {path}: it is in UTF-16; save it as CSV in UTF-8")
    comma = max(COMMAS[path.suffix.lower()], key=header.decode("utf-8", "replace").count)
    parse = csv.ParseOptions(delimiter=comma, newlines_in_values=True)
    try:
        names = csv.open_csv(path, parse_options=parse).schema.names
        safe_parquet.check_once(path, names, names)
        texts = dict.fromkeys(names, pa.string())
        as_text = csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
        table = csv.read_csv(path, parse_options=parse, convert_options=as_text)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"cannot read the table {path}: {reason(error)}; save it as CSV in UTF-8, a line for each image"
        ) from error
    plain = [name.strip() for name in names]
    if plain == names:
        return table
    # "path, label": the blank belongs to the comma, in the rows too
    return pa.table([pc.utf8_trim_whitespace(column) for column in table.columns], names=plain)


def _json(path: Path) -> pa.Table:
    import datasets

    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it would log what becomes one line of ours
    try:
        rows = datasets.load_dataset("json", data_files=str(path), split="train", streaming=True)
        found = list(rows.with_format("arrow").iter(10_000))
    except OSError:
        raise
    except Exception as error:  # of a file that is not what its name says: nearly anything
        raise UserError(f"cannot read the table {path}: {reason(error)}") from error
    if not found:
        raise UserError(f"{path} has no rows")
    return pa.concat_tables(found, promote_options="permissive")


def _part(path: Path, table: pa.Table, root: Path, ask: Request) -> PathPart:
    image = _path_column(table, ask, path)
    label = label_column(table.schema, ask, path)
    if label == image:
        raise UserError(f'{path}: "{label}" holds the paths; data.label=NAME says which column is the label')
    below = PurePosixPath(path.parent.relative_to(root).as_posix()) if path.is_relative_to(root) else None
    given = table[image].to_pylist()
    if any(not file for file in given):
        raise UserError(f'{path}: row {next(i for i, f in enumerate(given) if not f) + 1} has no "{image}"')
    files = [_below(root, str(below / file)) if below is not None else file for file in given]
    labels = _labels(table[label], path)
    ids = table["id"].to_pylist() if "id" in table.column_names and label != "id" else files
    return PathPart(path, labels, [i if i != "" else None for i in ids], (), table, files)


def _below(root: Path, file: str) -> str:
    """A path below the data folder without it: an absolute one is then the same id on every machine."""
    return file.removeprefix(f"{root.absolute().as_posix()}/")


def _labels(column: pa.ChunkedArray, path: Path) -> pa.Array:
    """Labels as numbers where texts count the classes from 0, else as they are."""
    labels = plain_labels(column, path)
    if not pa.types.is_string(labels.type):
        return labels
    labels = pc.if_else(pc.equal(labels, ""), None, labels)
    texts = pc.unique(labels).drop_null().to_pylist()
    if texts and all(NUMBER.fullmatch(text) for text in texts) and max(map(int, texts)) == len(texts) - 1:
        return labels.cast(pa.int64())
    return labels


def _path_column(table: pa.Table, ask: Request, path: Path) -> str:
    """The column of paths: as the user names it, by hint, by its name, then by what it holds."""
    texts = [f.name for f in table.schema if safe_parquet.is_text(f.type)]
    if ask.image_named is not None:
        return named_column(ask.image_named, texts, path, "data.image")
    if (known := first_named((*ask.image, *IMAGE_NAMES), texts)) is not None:
        return known
    for name in texts:
        if table.num_rows and str(table[name][0].as_py()).lower().endswith(EXTENSIONS):
            return name
    kinds = (f.name if f.name in texts else f"{f.name} ({f.type})" for f in table.schema)
    raise UserError(
        f'{path} has no column of paths (call it "image", or say data.image=NAME), one for each row; its '
        f"columns: {listed(kinds)}"
    )
