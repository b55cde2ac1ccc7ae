"""An image folder: one sub-folder per class, in train/, test/ and perhaps val/ or without any of them.

`datasets` could read such folders too. Its reader takes a class called `test` for a split, loses the labels
of nested folders and opens archives; so this one is ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from backbones import reading
from probe.data import split_names
from probe.data.dataset import Split
from probe.data.images import UNREADABLE, Images
from probe.data.request import Request
from probe.data.sources import metadata_csv
from probe.errors import UserError
from probe.system import digest_index

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".jfif",
    ".png",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".avif",
)
LARGEST = reading.IMAGE
SHOWN = 5  # folders in a message


class FolderImages(Images):
    """Image files below `root`, addressed by their relative paths (the sample ids)."""

    def __init__(self, root: Path, files: list[str], cache: str | Path | None = None) -> None:
        self._root = root
        self._files = files
        self._cache = cache  # where digests are remembered

    def stored(self, row: int) -> bytes:
        return reading.content(self._path(row), LARGEST)

    def where(self, row: int) -> str:
        return str(self._path(row))

    def hashed(self) -> np.ndarray:
        paths = [self._path(row) for row in range(len(self._files))]
        found = digest_index.digests(
            paths,
            lambda path: reading.sha256(path, LARGEST),
            lengths=[32] * len(paths),
            unreadable=UNREADABLE,
            cache=self._cache,
        )
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(len(paths), 32)

    def forget(self, row: int) -> None:
        digest_index.forget(self._path(row), cache=self._cache)

    def columns(self) -> list[str]:
        return list(self._beside)

    def column(self, name: str) -> list[Any]:
        values = self._beside[name]
        return [values.get(file) for file in self._files]

    @cached_property
    def _beside(self) -> dict[str, dict[str, str]]:
        return metadata_csv.read(self._root, self._files)

    def _path(self, row: int) -> Path:
        return self._root / self._files[row]


def read(root: Path, ask: Request) -> dict[str, Split]:
    """The splits of an image folder, or all of a flat folder of classes as train.

    Classes are the sorted names of the class folders. A validation folder may lack some of train's classes:
    it is read with train's list.
    """
    found = {name: root / name for name in class_folders(root)}
    if is_flat(root) and not ask.must:
        return {"train": _split("train", root, root, root, ask.cache)}
    chosen = split_names.choose(found, ask.want, str(root), ask.must)
    if list(chosen) == ["train"] and not ask.must:
        _check_alone(root, chosen["train"], found)
    return {name: _split(name, root, folder, chosen["train"], ask.cache) for name, folder in chosen.items()}


def _check_alone(root: Path, train: Path, found: Mapping[str, Path]) -> None:
    """Refuse class folders beside the only split: they would be left out, and nobody would notice."""
    beside = [name for name, folder in found.items() if folder != train and _has_images(folder)]
    if beside:
        raise UserError(
            f"{root} has classes in {train.name}/ and images in {', '.join(beside[:SHOWN])} beside it; "
            f"data.splits.train={train.name} reads the former only, or rename {train.name}/ if it is a class"
        )


def is_flat(root: Path) -> bool:
    """Are the folders in `root` classes? A split has class folders in it: a class can be called `test`."""
    folders = class_folders(root)
    splits = [name for name in folders if split_names.is_split(name)]
    return len(splits) < len(folders) and not any(class_folders(root / name) for name in splits)


def has_splits(root: Path) -> bool:
    """Is there a train folder with classes in it?"""
    names = (name for name in class_folders(root) if split_names.is_split(name, "train"))
    return any(class_folders(root / name) for name in names)


def classes(name: str, root: Path, folder: Path, cache: str | Path | None = None) -> Split:
    """A folder of class folders by itself, as a split called `name`; ids are paths from `root`."""
    return _split(name, root, folder, folder, cache)


def _split(name: str, root: Path, folder: Path, train: Path, cache: str | Path | None) -> Split:
    own, known = tuple(class_folders(folder)), tuple(class_folders(train))
    if not own:
        raise UserError(
            f"{folder} has no class folders; put the images of each class in a folder of its name"
        )
    may_lack = name == split_names.OPTIONAL and set(own) <= set(known)
    class_names = known if may_lack else own
    files: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        before = len(files)
        if class_name in own:
            files += (path.relative_to(root).as_posix() for path in image_files(folder / class_name))
        if len(files) == before and not may_lack:
            raise UserError(f'class "{class_name}" has no images in {folder}; add some or remove the folder')
        labels += [label] * (len(files) - before)
    return Split(name, FolderImages(root, files, cache), np.array(labels), files, class_names)


def class_folders(folder: Path) -> list[str]:
    """The sorted names of the folders in it, but for hidden ones."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if not e.name.startswith(".") and is_folder(e))
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    _check_text(names, folder)
    return names


def _check_text(names: Iterable[str], folder: Path) -> None:
    """File names are bytes to the system; a name that is not text could not be written into a result."""
    for name in names:
        if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
            encoding = sys.getfilesystemencoding()
            way_out = "rename it" if encoding == "utf-8" else "set PYTHONUTF8=1, or rename it"
            raise UserError(f"{folder} holds {name!r}, whose name is not valid {encoding.upper()}; {way_out}")


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Is it a folder, or a link to one?"""
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or into a folder that we may not read
        return False


def _has_images(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(e.name.lower().endswith(EXTENSIONS) and not is_folder(e) for e in entries)
    except OSError:  # not ours to read
        return False


def image_files(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Images below `folder`, sorted; links are followed, but never into a folder that we are in."""
    try:
        stat = folder.stat()
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    _check_text((entry.name for entry in ordered), folder)
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        return
    for entry in ordered:
        if entry.name.startswith("."):
            continue
        inner = is_folder(entry)
        if entry.name.lower().endswith(EXTENSIONS) and not inner:
            yield Path(entry.path)
        elif inner:
            yield from image_files(Path(entry.path), above | {here})
