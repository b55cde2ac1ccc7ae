"""The registered data sets, one row each; importing this costs nothing.

Column names are hints: when a copy of the data calls them otherwise, the first image column and the first
class column are taken. Sizes are those of the official splits and are checked at load.
The metric is the one of the usual transfer protocol: mean per class where the test split is unbalanced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.errors import UserError, nearest

METRICS = ("accuracy", "mean_per_class")
ANY_PHOTO = ("a photo of a {}.", "a picture of the {}.", "a close-up photo of a {}.")


@dataclass(frozen=True)
class Row:
    """One registered data set."""

    name: str
    title: str
    classes: int
    sizes: Mapping[
        str, int
    ]  # official images in each of our splits: train, test and, where there is one, val
    metric: str = "accuracy"
    hub: str | None = None  # repository on the hub; None: embedded
    revision: str | None = None  # pinned commit, where a verified one is known
    image: tuple[str, ...] = ("image",)  # column hints, tried in this order
    label: tuple[str, ...] = ("label",)
    splits: Mapping[str, str] = field(default_factory=dict)  # our split -> the hub's name, where they differ
    templates: tuple[str, ...] = ANY_PHOTO  # zero-shot prompts; {} is the class name
    licence: str = "not stated"
    note: str = ""


ROWS = (
    Row(
        name="digits",
        title="scikit-learn's handwritten digits",
        classes=10,
        sizes={"train": 1347, "test": 450},
        templates=(
            "the handwritten digit {}.",
            "a scan of the number {}.",
            'a blurry photo of the digit "{}".',
        ),
        licence="CC BY 4.0",
        note="embedded: 8x8 pixels, needs no network; the test quarter is a fixed stratified cut",
    ),
    Row(
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
    Row(
        name="cars",
        title="Stanford Cars",
        classes=196,
        sizes={"train": 8_144, "test": 8_041},
        hub="tanganke/stanford_cars",
        templates=("a photo of a {}, a type of car.", "a photo of the {} on a road.", "a {} for sale."),
        licence="research only",
        note="the repository also holds corrupted test splits, which are never read",
    ),
    Row(
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
    Row(
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
    Row(
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
    Row(
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
    Row(
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
        note="the 100 fine labels; 10 images stand in both train and test",
    ),
    Row(
        name="imagenet",
        title="ImageNet-1k",
        classes=1000,
        sizes={"train": 1_281_167, "test": 50_000},
        hub="ILSVRC/imagenet-1k",
        revision="49e2ee26f3810fb5a7536bbf732a7b07389a47b5",
        splits={"test": "validation"},
        licence="research only, gated",
        note="tested on the official validation split: the hub's own `test` has no labels",
    ),
    Row(
        name="cub",
        title="Caltech-UCSD Birds-200-2011",
        classes=200,
        sizes={"train": 5_994, "test": 5_794},
        hub="bentrevett/caltech-ucsd-birds-200-2011",
        templates=("a photo of a {}, a type of bird.", "a {} on a branch.", "a close-up photo of a {}."),
        licence="research only",
    ),
)

_BY_NAME = {row.name: row for row in ROWS}


def rows() -> tuple[Row, ...]:
    """Every registered data set, the embedded one first."""
    return ROWS


def names() -> list[str]:
    return list(_BY_NAME)


def find(name: str) -> Row | None:
    """The row called `name`, or None."""
    return _BY_NAME.get(name)


def unknown(name: str) -> UserError:
    """The error for a word that is neither a registered name, a folder nor a hub id."""
    return UserError(
        f'unknown data set "{name}"{nearest(name, names())} '
        "(or give an image folder, a folder of parquet files, or a hub id owner/name)"
    )
