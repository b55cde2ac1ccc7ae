"""Other images of known classes, to judge a head that exists: a test split by itself, matched by class names.

Shifted test sets come without training images, often with a part of the classes, and name these in their own
way. What is read: all that `load` reads (its test split, or all of it where it has none) and a folder with a
test split only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backbones import reading
from probe.data import catalogue, split_names
from probe.data.dataset import Split
from probe.data.load_dataset import load
from probe.data.request import Request
from probe.data.sources import image_folder, kinds
from probe.errors import UserError, nearest

NAMED = 5  # unknown classes that an error names
TESTED = (*split_names.WORDS["test"], *split_names.WORDS["val"])  # what a place may call it, best first
# Classes are those of the first split: train's where there is one, else of the images themselves.
CLASSES = (*split_names.WORDS["train"], *TESTED)


@dataclass(frozen=True)
class Shift:
    """A published test set for the classes of another one; it is read from a local copy."""

    name: str
    title: str
    folders: str  # what names its class folders: "wnid" (n01440764) or "index" (0 to 999)
    present: bool  # is it judged among the classes that it has only, as its authors do?


SHIFTS = {
    row.name: row
    for row in (
        Shift("imagenet-v2", "ImageNet-V2 (Recht et al. 2019)", "index", False),
        Shift("imagenet-sketch", "ImageNet-Sketch (Wang et al. 2019)", "wnid", False),
        Shift("imagenet-r", "ImageNet-R (Hendrycks et al. 2021)", "wnid", True),
        Shift("imagenet-a", "ImageNet-A (Hendrycks et al. 2021)", "wnid", True),
    )
}


@dataclass(frozen=True)
class Judged:
    """A split whose labels are numbers in the head's list of classes."""

    name: str
    split: Split
    present: np.ndarray  # the head's classes (numbers) that it has images of
    among_present: bool  # is it judged among those only, where nothing else is asked for?


def read(
    name: str, class_names: Sequence[str], *, root: str | None = None, cache: str | Path | None = None
) -> Judged:
    """The images that `name` (and `root`, a local copy of a registered set) stands for."""
    shift = SHIFTS.get(name)
    if shift is not None and root is None:
        raise UserError(f"{name} is read from a local copy: give --root FOLDER, its folder of class folders")
    split = _split(name, root, cache)
    numbers = _numbers(split, class_names, None if shift is None else shift.folders)
    labels = numbers[split.labels]
    made = Split("test", split._images, labels, split.ids, tuple(class_names), split._rows, Path(name).name)
    return Judged(Path(name).name, made, np.unique(labels), shift is not None and shift.present)


def _split(name: str, root: str | None, cache: str | Path | None) -> Split:
    """The test split, whatever the place calls it; a folder of class folders is one too."""
    path = reading.expanded(root if name in SHIFTS and root is not None else name)
    if name not in SHIFTS and (catalogue.find(name) is not None or not path.exists()):
        return load(name, root=root, cache=cache)["test"]
    if name in SHIFTS and not path.is_dir():
        raise UserError(f"the data folder {path} does not exist; give a folder of class folders")
    if path.is_dir() and not kinds.holds_tables(path):
        inside = {folder.lower(): folder for folder in image_folder.class_folders(path)}
        named = next((inside[word] for word in TESTED if word in inside), None)
        return image_folder.classes("test", path, path if named is None else path / named, cache)
    found = kinds.read(path, Request({"train": CLASSES, "test": TESTED}, cache=cache))
    # what has no split to test on is a test split itself
    return found.get("test", found["train"])


def _numbers(split: Split, class_names: Sequence[str], folders: str | None) -> np.ndarray:
    """For each class of the split its number among the head's; unknown ones are one line."""
    known = _spellings(class_names, folders)
    unknown = [name for name in split.class_names if name not in known]
    if unknown:
        shown = ", ".join(unknown[:NAMED]) + (", ..." if len(unknown) > NAMED else "")
        raise UserError(
            f"{len(unknown)} of {len(split.class_names)} classes are none of the {len(class_names)} that the "
            f"head knows: {shown}{nearest(unknown[0], class_names[:50])}; leave them out or rename them"
        )
    return np.array([known[name] for name in split.class_names], dtype=np.int64)


def _spellings(class_names: Sequence[str], folders: str | None) -> dict[str, int]:
    """What the data may call each class: the head's name; of ImageNet's 1,000 also WordNet id or number."""
    known = {name: k for k, name in enumerate(class_names)}
    if folders == "index":
        known |= {str(k): k for k in range(len(class_names)) if str(k) not in known}
    if len(class_names) == len(ids := wordnet_ids()):
        known |= {wnid: k for k, wnid in enumerate(ids) if wnid not in known}
    return known


def wordnet_ids() -> list[str]:
    """The WordNet ids of ImageNet's 1,000 classes in their usual order, from the installed timm."""
    from importlib.util import find_spec

    found = find_spec("timm")
    for place in (found.submodule_search_locations or []) if found else []:
        path = Path(place, "data", "_info", "imagenet_synsets.txt")
        if path.is_file():
            return reading.text(path).split()
    return []
