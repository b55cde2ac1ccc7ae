"""The registered data sets, one row each; importing this costs nothing.

Column names are hints: when a copy of the data calls them otherwise, the first image column and the first
class column are used. Sizes are those of the official splits and are checked at load.
The metric is the one of the usual transfer protocol: mean per class where the test split is unbalanced.

From outside, `probe.data.register(DatasetSpec(...))` adds a row, and so does an installed package whose entry
point names its `DatasetSpec` (the format is provisional: a later version may add or rename fields):

    [project.entry-points."mr2_probe.datasets"]
    my-data = "my_package:MY_DATA"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import plugins
from probe.errors import UserError, nearest

if TYPE_CHECKING:
    from probe.data.dataset import Dataset, Split

    Reader = Callable[[], Mapping[str, Split] | Dataset]

METRICS = ("accuracy", "mean_per_class")
ANY_PHOTO = ("a photo of a {}.", "a picture of the {}.", "a close-up photo of a {}.")


NAME = re.compile(r"\w[\w.-]*")  # what people type; it must not look like a path or a hub id
LONG_TAIL = "-lt"  # "<name>-lt" is the long-tailed version of a registered data set


@dataclass(frozen=True)
class DatasetSpec:
    """One registered data set. Its images come from one place: `hub`, `folder`, `read`, or a local copy that
    its `lists` name."""

    name: str
    title: str
    classes: int
    # official images in each of our splits: train, test and, where there is one, val
    sizes: Mapping[str, int]
    metric: str = "accuracy"  # one of METRICS
    hub: str | None = None  # repository on the hub
    folder: str | Path | None = None  # local image folder, or folder of parquet files
    read: str | Reader | None = None  # function that returns the splits, or "package.module:function"
    revision: str | None = None  # pinned commit, where a verified one is known
    image: tuple[str, ...] = ("image",)  # column hints, tried in this order
    label: tuple[str, ...] = ("label",)
    splits: Mapping[str, str] = field(default_factory=dict)  # our split -> the hub's name, where they differ
    lists: Mapping[str, str] = field(default_factory=dict)  # our split -> its list file, "path label" a line
    left_out: tuple[str, ...] = ()  # splits of `sizes` that are checked, and neither trained nor tested on
    templates: tuple[str, ...] = ANY_PHOTO  # zero-shot prompts; {} is the class name
    imagenet_prompts: bool = False  # names and templates of zero-shot prompts are CLIP's for ImageNet
    licence: str = "not stated"
    note: str = ""

    def __post_init__(self) -> None:
        """Raise where a row makes no sense: rows also come from other packages."""
        problems = {
            "its name is not one word of letters, digits, dots and dashes": not NAME.fullmatch(self.name),
            f"{LONG_TAIL} at the end of a name asks for a long-tailed version": (
                self.name.endswith(LONG_TAIL) and not self.lists
            ),
            "give one of hub, folder, read and lists": (
                sum(map(bool, (self.hub, self.folder, self.read, self.lists))) != 1
            ),
            "lists has a file for each of its sizes": bool(self.lists) and set(self.lists) != set(self.sizes),
            "sizes are those of train and test, and of val where there is one": not (
                {"train", "test"} <= set(self.sizes) <= {"train", "val", "test"}
            ),
            f"the metric is one of {', '.join(METRICS)}": self.metric not in METRICS,
            "every template needs {} for the class name": not all("{}" in t for t in self.templates),
        }
        for problem, found in problems.items():
            if found:
                raise UserError(f'data set "{self.name}": {problem}')

    @property
    def source(self) -> str:
        """Where the images come from, for people."""
        if self.lists:
            return f"a local copy, and {', '.join(self.lists.values())}"
        if self.read is None:
            return str(self.hub or self.folder)
        return "embedded" if self.reader_name.startswith("probe.") else f"read by {self.reader_name}"

    @property
    def reader_name(self) -> str:
        """The function behind `read`, as text."""
        if self.read is None or isinstance(self.read, str):
            return str(self.read)
        return f"{self.read.__module__}:{getattr(self.read, '__qualname__', type(self.read).__name__)}"

    def row(self) -> dict[str, Any]:
        """Plain values for a listing or JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("folder", "read")}
        return {**values, "source": self.source}


BALANCED_VAL = (
    "its balanced validation list is checked and left out: what learns from train learns from val too, which "
    "would fill the tail"
)


def _lists(start: str, *splits: str) -> dict[str, str]:
    """The authors' list files; the last split is the one that is tested on."""
    return {"test" if name == splits[-1] else name: f"{start}_{name}.txt" for name in splits}


ROWS = (
    DatasetSpec(
        name="digits",
        title="scikit-learn's handwritten digits",
        classes=10,
        sizes={"train": 1347, "test": 450},
        read="probe.data.sources.digits:read",
        templates=(
            "the handwritten digit {}.",
            "a scan of the number {}.",
            'a blurry photo of the digit "{}".',
        ),
        licence="CC BY 4.0",
        note="embedded: 8x8 pixels, needs no network; the test quarter is a fixed stratified holdout",
    ),
    DatasetSpec(
        name="letters",
        title="Printed letters and digits, tested on typefaces that were not trained on",
        classes=62,
        sizes={"train": 1_736, "test": 1_488},
        read="probe.data.sources.letters:read",
        templates=('a print of the character "{}".', "the {} in a typeface.", "a black and white {}."),
        licence="SIL OFL 1.1, Ubuntu Font Licence 1.0 (of the typefaces)",
        note="drawn from the package pymupdf-fonts, needs no network; another FreeType may draw other pixels",
    ),
    DatasetSpec(
        name="food101",
        title="Food-101",
        classes=101,
        sizes={"train": 75_750, "test": 25_250},
        hub="ethz/food101",
        revision="e06acf2a88084f04bce4d4a525165d68e0a36c38",
        splits={"test": "validation"},
        templates=("a photo of {}, a type of food.", "a plate of {}.", "{}, served in a restaurant."),
        note="the hub calls the official test split `validation`; the training labels are noisy by design",
    ),
    DatasetSpec(
        name="cars",
        title="Stanford Cars",
        classes=196,
        sizes={"train": 8_144, "test": 8_041},
        hub="tanganke/stanford_cars",
        templates=("a photo of a {}, a type of car.", "a photo of the {} on a road.", "a {} for sale."),
        licence="research only",
        note="the repository also holds corrupted test splits, which are never read",
    ),
    DatasetSpec(
        name="pets",
        title="Oxford-IIIT Pets",
        classes=37,
        sizes={"train": 3_680, "test": 3_669},
        metric="mean_per_class",
        hub="timm/oxford-iiit-pet",
        templates=("a photo of a {}, a type of pet.", "a {} at home.", "a close-up photo of a {}."),
        licence="CC BY-SA 4.0",
        note="train is the official trainval",
    ),
    DatasetSpec(
        name="flowers",
        title="Oxford Flowers-102",
        classes=102,
        sizes={"train": 1_020, "val": 1_020, "test": 6_149},
        metric="mean_per_class",
        hub="dpdl-benchmark/oxford_flowers102",
        splits={"val": "validation"},
        templates=(
            "a photo of a {}, a type of flower.",
            "a {} in bloom.",
            "a close-up photo of a {} blossom.",
        ),
    ),
    DatasetSpec(
        name="aircraft",
        title="FGVC-Aircraft",
        classes=100,
        sizes={"train": 3_334, "val": 3_333, "test": 3_333},
        metric="mean_per_class",
        hub="Donghyun99/FGVC-Aircraft",
        label=("variant", "label"),  # family and manufacturer are coarser labels of the same images
        splits={"val": "val"},
        templates=("a photo of a {}, a type of aircraft.", "a {} on the runway.", "a {} in flight."),
        licence="research only",
        note="the 100 variants",
    ),
    DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        sizes={"train": 50_000, "test": 10_000},
        hub="uoft-cs/cifar10",
        revision="0b2714987fa478483af9968de7c934580d0bb9a2",
        image=("img", "image"),
        templates=(
            "a photo of a {}.",
            "a tiny, blurry photo of a {}.",
            "a low-resolution picture of the {}.",
        ),
    ),
    DatasetSpec(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        sizes={"train": 50_000, "test": 10_000},
        hub="uoft-cs/cifar100",
        revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
        image=("img", "image"),
        label=("fine_label", "label"),
        templates=(
            "a photo of a {}.",
            "a tiny, blurry photo of a {}.",
            "a low-resolution picture of the {}.",
        ),
        note="the 100 fine labels; 10 images are in both train and test",
    ),
    DatasetSpec(
        name="imagenet",
        title="ImageNet-1k",
        classes=1000,
        sizes={"train": 1_281_167, "test": 50_000},
        hub="ILSVRC/imagenet-1k",
        revision="49e2ee26f3810fb5a7536bbf732a7b07389a47b5",
        splits={"test": "validation"},
        imagenet_prompts=True,
        licence="research only, gated",
        note="tested on the official validation split: the hub's own `test` has no labels",
    ),
    DatasetSpec(
        name="imagenet-lt",
        title="ImageNet-LT (Liu et al. 2019)",
        classes=1000,
        sizes={"train": 115_846, "val": 20_000, "test": 50_000},
        lists=_lists("ImageNet_LT", "train", "val", "test"),
        imagenet_prompts=True,
        left_out=("val",),
        licence="research only",
        note=BALANCED_VAL,
    ),
    DatasetSpec(
        name="places-lt",
        title="Places-LT (Liu et al. 2019)",
        classes=365,
        sizes={"train": 62_500, "val": 7_300, "test": 36_500},
        lists=_lists("Places_LT", "train", "val", "test"),
        left_out=("val",),
        licence="research only",
        note=BALANCED_VAL,
    ),
    DatasetSpec(
        name="inat2018",
        title="iNaturalist 2018",
        classes=8142,
        sizes={"train": 437_513, "test": 24_426},
        lists=_lists("iNaturalist18", "train", "val"),
        licence="research only",
        note="tested on the official validation images, three of each class",
    ),
    DatasetSpec(
        name="cub",
        title="Caltech-UCSD Birds-200-2011",
        classes=200,
        sizes={"train": 5_994, "test": 5_794},
        hub="bentrevett/caltech-ucsd-birds-200-2011",
        templates=("a photo of a {}, a type of bird.", "a {} on a branch.", "a close-up photo of a {}."),
        licence="research only",
    ),
)

KIND = "datasets"  # of the entry points by which packages add rows
_by_name = {row.name: row for row in ROWS}


def rows() -> tuple[DatasetSpec, ...]:
    """Every registered data set: the embedded one first, those that installed packages add last."""
    return (*_by_name.values(), *plugins.rows(KIND, DatasetSpec, taken=_by_name))


def names() -> list[str]:
    """The names of all rows, in the same order."""
    return [*_by_name, *(name for name in plugins.names(KIND) if name not in _by_name)]


def register(row: DatasetSpec) -> None:
    """Add a data set of your own; a name that is taken is an error, not a replacement.

    >>> sizes = {"train": 900, "test": 300}
    >>> register(DatasetSpec("birds", "Our birds", classes=12, sizes=sizes, folder="~/birds"))
    """
    if row.name in _by_name:
        raise UserError(f'cannot register the data set "{row.name}": the name is taken')
    _by_name[row.name] = row


def find(name: str) -> DatasetSpec | None:
    """The row called `name`, or None; packages are only asked for what can be a name and is not built in."""
    if name in _by_name or not NAME.fullmatch(name):
        return _by_name.get(name)
    return plugins.find(KIND, name, DatasetSpec)


def unknown(name: str) -> UserError:
    """The error for a word that is neither a registered name, a folder nor a hub id."""
    return UserError(
        f'unknown data set "{name}"{nearest(name, names())} '
        "(or give an image folder, a folder of parquet files, or a hub id owner/name)"
    )
