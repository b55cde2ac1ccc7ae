"""What is in a data set, before minutes are spent on it: plain values, for people and for JSON."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from probe.data import decode, duplicates
from probe.data.dataset import Dataset, Split
from probe.errors import UserError
from probe.system.progress import bar

LOOKED_AT = 2000  # images of a split whose headers are read
EXTREMES = 3  # classes and files that are named
TINY = 32  # pixels of the shorter side
NARROW = 5.0  # longer side over shorter


def opening(data: Dataset) -> dict[str, Any]:
    """What is known without reading an image."""
    return {
        "name": data.name,
        "source": data.source,
        "metric": data.metric,
        "classes": len(data.class_names),
        "splits": {name: {"images": len(split), **_per_class(split)} for name, split in data.by_name.items()},
        "note": data.note,
        "test_cut": None if data.test_cut is None else data.test_cut.record(),
    }


def summarise(data: Dataset) -> dict[str, Any]:
    """All of it: every image is hashed, and the headers of some are read."""
    found = opening(data)
    found["duplicates"] = duplicates.find(data.by_name)
    for name, split in data.by_name.items():
        found["splits"][name] |= _looked_at(split)
    return found


def _per_class(split: Split) -> dict[str, Any]:
    counts = split.class_counts
    order = np.argsort(counts, kind="stable")

    def named(rows: np.ndarray) -> list[dict[str, Any]]:
        return [{"class": split.class_names[k], "images": int(counts[k])} for k in rows]

    return {
        "per_class": {
            "least": int(counts.min()),
            "median": float(np.median(counts)),
            "most": int(counts.max()),
        },
        "smallest": named(order[:EXTREMES]),
        "largest": named(order[::-1][:EXTREMES]),
    }


def _looked_at(split: Split) -> dict[str, Any]:
    """Sizes and suspects of evenly spread images."""
    rows = np.unique(np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).astype(np.int64)).tolist()
    sizes: list[tuple[int, int]] = []
    bad: list[dict[str, str]] = []
    odd: list[dict[str, str]] = []
    with bar(f"looking at {split.title}", len(rows), "images") as advance:
        for row in rows:
            sample = split.ids[row]
            try:
                sizes.append(_size(split.stored(row)))
                if why := _odd(*sizes[-1]):
                    odd.append({"id": sample, "why": why})
            except (OSError, ValueError, SyntaxError, UserError, Image.DecompressionBombError) as error:
                bad.append({"id": sample, "why": _why(error)})
            advance(1)
    suspect = [*bad, *odd]  # what cannot be read is named first
    sides = np.array(sizes or [(0, 0)])
    middle = np.median(sides, axis=0).tolist()
    return {
        "looked_at": len(rows),
        "sizes": {
            "smallest": sides[np.argmin(sides.prod(axis=1))].tolist(),
            "median": [int(side) for side in middle],
            "largest": sides[np.argmax(sides.prod(axis=1))].tolist(),
        },
        "suspect": {"count": len(suspect), "images": suspect[:EXTREMES]},
    }


def _why(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image"
    return getattr(error, "strerror", None) or str(error)


def _size(stored: bytes) -> tuple[int, int]:
    if not stored:
        raise ValueError("it is empty")
    decode.load_plugins()
    return Image.open(BytesIO(stored)).size


def _odd(width: int, height: int) -> str:
    short, long = sorted((width, height))
    if short < TINY:
        return f"{width} x {height} pixels only"
    return f"{width} x {height} pixels: very narrow" if long > NARROW * short else ""
