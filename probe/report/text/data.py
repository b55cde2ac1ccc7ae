"""What is in a data set, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def opening(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines at the start of a run."""
    yield f"{found['name']}: {found['classes']:,} classes, from {found['source']}"
    for name, split in found["splits"].items():
        counts = split["per_class"]
        spread = (
            f"{counts['least']:,} to {counts['most']:,}"
            if counts["least"] < counts["most"]
            else counts["most"]
        )
        yield f"  {name:5} {split['images']:>9,} images, {spread} of a class"
    if found["test_cut"] is not None:
        yield f"  NOTE: {found['note']}"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Everything that `probe data` says."""
    yield from opening(found)
    if found["note"] and found["test_cut"] is None:
        yield f"  {found['note']}"
    for name, split in found["splits"].items():
        if split["per_class"]["least"] < split["per_class"]["most"]:
            yield f"{name}: fewest {_classes(split['smallest'])}; most {_classes(split['largest'])}"
        sizes = {key: "x".join(map(str, size)) for key, size in split["sizes"].items()}
        yield (
            f"{name}: pixels {sizes['smallest']} to {sizes['largest']}, usually about {sizes['median']} "
            f"({split['looked_at']:,} images looked at)"
        )
        for one in split["suspect"]["images"]:
            yield f"{name}: suspect {one['id']}: {one['why']}"
        if split["suspect"]["count"] > len(split["suspect"]["images"]):
            yield f"{name}: {split['suspect']['count']:,} suspect images in all"
    kinds = {
        "train_test": "in both test and train",
        "two_labels": "under two labels",
        "within": "repeated in a split",
    }
    counts = {told: found["duplicates"][kind]["count"] for kind, told in kinds.items()}
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    yield f"identical images: {told or 'none'}"


def _classes(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['class']} ({row['images']:,})" for row in rows)
