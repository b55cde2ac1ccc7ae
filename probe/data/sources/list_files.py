"""Images of a folder as list files name them: one line per image, its path below the folder and its label.

    train/n01440764/n01440764_190.JPEG 0

So ImageNet-LT, Places-LT and iNaturalist 2018 are published. Labels are numbers from 0; a class is called as
the folder of its training images, where those tell the classes apart, else by its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from backbones import reading
from probe.data import split_names
from probe.data.dataset import Split
from probe.data.sources.image_folder import FolderImages
from probe.errors import UserError

SHOWN = 80  # characters of a line that a message shows


def read(
    root: Path, lists: Path, files: Mapping[str, str], *, cache: str | Path | None = None
) -> dict[str, Split]:
    """The splits that `files` names (split: list file in the folder `lists`), of images below `root`.

    Without `files`, those called `train.txt`, `..._train.txt` and so on.
    """
    found = {name: lists / file for name, file in files.items()} or _by_name(lists)
    tables = {name: _table(path) for name, path in found.items()}
    largest = max(int(labels.max()) for _, labels in tables.values())
    class_names = _class_names(*tables["train"], classes=largest + 1)
    splits = {}
    for name, (paths, labels) in tables.items():
        check_images(root, paths, found[name])
        splits[name] = Split(name, FolderImages(root, paths, cache), labels, paths, class_names)
    return splits


def _by_name(lists: Path) -> dict[str, Path]:
    """The list files of a folder by the split that the end of their names says."""
    words = {
        word: path for path in sorted(lists.glob("*.txt")) for word in [path.stem.split("_")[-1].lower()]
    }
    missing = [ours for ours in ("train", "test") if not set(words) & set(split_names.WORDS[ours])]
    if missing:
        raise UserError(
            f"there is no list file of {missing[0]} in {lists}: give data.list_files=FOLDER with train.txt "
            "and test.txt (or ..._train.txt), a line of which is a path and the number of a class"
        )
    return split_names.choose(words, split_names.WORDS, f"{lists} (list files)")


def _table(path: Path) -> tuple[list[str], np.ndarray]:
    """The paths and labels of a list file, in its order."""
    try:
        lines = reading.text(path).splitlines()
    except OSError as error:
        raise UserError(
            f"cannot read the list file {path}: {error.strerror or error}; "
            "data.list_files is the folder that holds it"
        ) from error
    paths, labels = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        image, _, label = line.strip().rpartition(" ")
        inside = PurePosixPath(image.strip())
        if not (image and label.isascii() and label.isdigit() and len(label) < 7):
            raise UserError(
                f'{path}, line {number}: "{line:.{SHOWN}}" is not a path and the number of a class'
            )
        if inside.is_absolute() or ".." in inside.parts:
            raise UserError(
                f'{path}, line {number}: "{inside!s:.{SHOWN}}" is not a path below the data folder'
            )
        paths.append(str(inside))
        labels.append(int(label))
    if not paths:
        raise UserError(f"{path} names no images; a line is a path and the number of a class")
    return paths, np.array(labels)


def _class_names(paths: list[str], labels: np.ndarray, *, classes: int) -> tuple[str, ...]:
    """The folders of each class's first training image: their last part, or all of it, if that is unique."""
    first = {int(label): int(row) for label, row in zip(*np.unique(labels, return_index=True), strict=True)}
    if len(first) < classes:
        missing = next(k for k in range(classes) if k not in first)
        raise UserError(
            f"the list of train has no image of class {missing}; labels are the numbers 0 to {classes - 1}, "
            "each of which must be there"
        )
    folders = [PurePosixPath(paths[first[k]]).parent for k in range(classes)]
    for names in ([folder.name for folder in folders], [str(folder) for folder in folders]):
        if len(set(names)) == classes and all(names):
            return tuple(names)
    return tuple(str(k) for k in range(classes))


def check_images(
    root: Path,
    paths: list[str],
    table: Path,
    advice: str = "data.root is the folder that the paths of the list begin in",
) -> None:
    """Raise unless every image is there: a missing one would stop the run much later."""
    missing = [path for path in paths if not (root / path).is_file()]
    if missing:
        if "\\" in missing[0]:
            advice = "they have backslashes, as on Windows: write / instead, below that folder"
        raise UserError(
            f"{len(missing):,} of the {len(paths):,} images of {table.name} are not below {root}, the first "
            f"is {missing[0]}; {advice}"
        )
