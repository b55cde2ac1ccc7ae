"""Which reader a file, a pattern or a folder needs; all readers take the same request."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from probe.data import split_names
from probe.data.dataset import Split
from probe.data.request import Request
from probe.data.sources import (
    arrow_folder,
    image_folder,
    parquet_folder,
    path_tables,
    readme_configs,
    tar_shards,
)
from probe.data.sources.split_files import check_complete, groups
from probe.errors import UserError

FilesReader = Callable[[Path, Mapping[str, Sequence[str]], Request], dict[str, Split]]
# By the ending of file names; the first kind that a folder has is the one that is read.
BY_SUFFIX: dict[str, FilesReader] = {
    ".parquet": parquet_folder.read_files,
    ".tar": tar_shards.read_files,
    ".arrow": arrow_folder.read_files,
    ".csv": path_tables.read_files,
    ".tsv": path_tables.read_files,
    ".jsonl": path_tables.read_files,
    ".json": path_tables.read_files,
}
IN_ONE = (".parquet", ".tar", ".arrow")  # kinds that hold the images themselves
BRACES = re.compile(r"\{([^{}]*)\}")
MOST_FILES = 100_000  # that a pattern may stand for


def read(path: Path, ask: Request) -> dict[str, Split]:
    """The splits of whatever stands at `path`."""
    if path.is_dir():
        return read_folder(path, ask)
    if path.suffix.lower() not in BY_SUFFIX:
        raise UserError(
            f"{path} is a file, not a folder, and of no kind that is read ({', '.join(BY_SUFFIX)}); give "
            "one of those, or a folder with train and test in it"
        )
    return BY_SUFFIX[path.suffix.lower()](path.parent, {"train": [path.name]}, ask)


def read_folder(root: Path, ask: Request) -> dict[str, Split]:
    """The splits of a folder: saved by `datasets`, files of tables or shards, or image files."""
    if arrow_folder.is_saved(root):
        return arrow_folder.read_saved(root, ask)
    if (tables := _tables(root)) is not None:
        return BY_SUFFIX[tables[0]](root, by_split(root, tables[1], ask), ask)
    if described := _metadata_files(root):
        found = split_names.choose(described, ask.want, str(root), ask.must)
        return path_tables.read_files(root, found, ask)
    _check_folders(root)
    return image_folder.read(root, ask)


def holds_tables(root: Path) -> bool:
    """Is a folder read from tables or shards, not by its class folders?"""
    return arrow_folder.is_saved(root) or _tables(root) is not None or bool(_metadata_files(root))


def _tables(root: Path) -> tuple[str, list[str]] | None:
    """The files to read and their ending; None where class folders, or `metadata.csv`, tell the labels."""
    files = table_files(root)
    kind = next((suffix for suffix in BY_SUFFIX if files.get(suffix)), None)
    if kind is None or (kind not in IN_ONE and _has_classes(root)):
        return None
    return kind, files[kind]


def _has_classes(root: Path) -> bool:
    """Does the folder have classes, so that a table in it only says more about the images?"""
    flat = image_folder.is_flat(root) and len(image_folder.class_folders(root)) > 1
    return flat or image_folder.has_splits(root)


def _metadata_files(root: Path) -> dict[str, list[str]]:
    """The tables that tell the labels of images without class folders, by split: `train/metadata.csv`."""
    if _has_classes(root):
        return {}
    folders = [name for name in image_folder.class_folders(root) if split_names.is_split(name)]
    places = {"train": ""} | {name: f"{name}/" for name in folders}
    there = {
        split: [place + name for name in path_tables.METADATA if (root / place / name).is_file()][:1]
        for split, place in places.items()
    }
    return {split: files for split, files in there.items() if files}


def _check_folders(root: Path) -> None:
    """Raise, for a folder without folders, what is there instead of labelled images."""
    if image_folder.class_folders(root):
        return
    files = sorted(_files(root, "", 1))
    held = f"{len(files):,} files, such as {files[0]}" if files else "nothing"
    raise UserError(
        f"{root} has no labelled images (it holds {held}); a data set has train/ and test/ with class "
        f"folders in them, class folders alone, a table or shards ({', '.join(BY_SUFFIX)}, not compressed), "
        "or a metadata.csv with labels"
    )


def by_split(root: Path, files: Sequence[str], ask: Request) -> dict[str, list[str]]:
    """Our splits' files: as the folder's README says, else by the files' names."""
    found = readme_configs.declared(root, ask.configuration)
    if found is None:
        found = groups(files, str(root), ask.configuration)
    chosen = split_names.choose(found, ask.want, str(root), ask.must)
    for name, mine in chosen.items():
        check_complete(mine, f"{root} ({name})")
    return chosen


def table_files(root: Path) -> dict[str, list[str]]:
    """Files of tables and shards by ending: in the folder, in data/, in configuration/split/."""
    # Below train/ there may be a million images: no table is looked for among them.
    depth = 2 if (root / "train").is_dir() else 3
    found: dict[str, list[str]] = {}
    for file in sorted(_files(root, "", depth)):
        name = PurePosixPath(file)
        if name.suffix.lower() in BY_SUFFIX and name.name not in path_tables.METADATA:
            found.setdefault(name.suffix.lower(), []).append(file)
    # Beside tables of images, a table of paths stands in the folder itself.
    return {
        suffix: mine if suffix in IN_ONE else [file for file in mine if "/" not in file]
        for suffix, mine in found.items()
    }


def _files(root: Path, below: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(root / below) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if image_folder.is_folder(entry):
                    if depth > 1:
                        yield from _files(root, f"{below}{entry.name}/", depth - 1)
                else:
                    yield below + entry.name
    except PermissionError as error:
        if not below:
            raise UserError(f"cannot read the folder {root}: {error.strerror}") from error


def expand(pattern: str) -> list[str]:
    """The files that a brace pattern stands for: `train-{000..012}.tar`, `{train,test}.tar`."""
    found = list(islice(_expanded(pattern), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise UserError(f"{pattern} stands for more than {MOST_FILES:,} files")
    return found


def _expanded(pattern: str) -> Iterator[str]:
    match = BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    first, dots, last = match[1].partition("..")
    words: Iterator[str] = iter(match[1].split(","))
    if dots and first.isdigit() and last.isdigit():
        if int(first) > int(last):
            raise UserError(f"{pattern}: {match[0]} counts down; write {{{last}..{first}}}")
        words = (str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
    for word in words:
        yield from _expanded(f"{pattern[: match.start()]}{word}{pattern[match.end() :]}")


def read_pattern(pattern: str, ask: Request) -> dict[str, Split]:
    """The splits of the files that a brace pattern stands for; every one must be there."""
    paths = [Path(file) for file in expand(pattern)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(
            f"{pattern}: {len(missing):,} of {len(paths):,} files are missing, the first is {missing[0]}"
        )
    suffixes = {path.suffix.lower() for path in paths}
    if len(suffixes) != 1 or not suffixes <= set(BY_SUFFIX):
        raise UserError(f"{pattern}: the files are of no one kind that is read ({', '.join(BY_SUFFIX)})")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    found = groups([path.relative_to(root).as_posix() for path in paths], pattern, ask.configuration)
    return BY_SUFFIX[suffixes.pop()](root, split_names.choose(found, ask.want, pattern, ask.must), ask)
