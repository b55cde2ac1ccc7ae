"""What must hold for every data set, wherever it was read, and what a registered one promises."""

from __future__ import annotations

from probe.data import split_names
from probe.data.catalogue import DatasetSpec
from probe.data.dataset import Split, check_unique
from probe.errors import UserError


def check_splits(splits: dict[str, Split], source: str) -> None:
    """Raise unless every split has images of the same classes, each under an id of its own."""
    train = splits["train"]
    for name, split in splits.items():
        if not len(split):
            raise UserError(f"{source}: the {name} split has no images")
        check_unique(split.ids, name)
        if split.class_names != train.class_names:
            difference = _difference(train, split)
            raise UserError(f"{source}: train and {name} do not have the same classes: {difference}")
        empty = [split.class_names[k] for k in (split.class_counts == 0).nonzero()[0]]
        # a validation split may lack a rare class; nothing is trained on it
        if empty and name != split_names.OPTIONAL:
            shown = ", ".join(f'"{c}"' for c in empty[:5])
            raise UserError(f"{source}: {len(empty)} classes have no images in {name}: {shown}")
    if len(train.class_names) < 2:
        only = train.class_names[0]
        raise UserError(f'{source}: there is one class only ("{only}"); a probe needs at least two')


def _difference(train: Split, other: Split) -> str:
    parts = [
        f"only in {name}: {', '.join(only[:5])}"
        for name, only in (
            ("train", [c for c in train.class_names if c not in other.class_names]),
            (other.name, [c for c in other.class_names if c not in train.class_names]),
        )
        if only
    ]
    return "; ".join(parts) or "the same names in another order"


def check_official(row: DatasetSpec, splits: dict[str, Split]) -> None:
    """Raise unless numbers of images and classes are the official ones."""
    hint = "to use it all the same, give the folder instead of the name"
    if len(splits["train"].class_names) != row.classes:
        found = len(splits["train"].class_names)
        raise UserError(f"{row.name}: found {found} classes, the official number is {row.classes}; {hint}")
    for name, size in row.sizes.items():
        if len(splits[name]) != size:
            found = len(splits[name])
            raise UserError(f"{row.name}: {name} has {found:,} images, officially {size:,}; {hint}")
