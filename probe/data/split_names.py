"""Which folder or file group serves as which of our splits: train, test and, where there is one, val."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from probe.data.catalogue import DatasetSpec
from probe.errors import UserError

T = TypeVar("T")

WORDS = {  # the names people give to each split; the first is ours or the hub's
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing"),
}
OPTIONAL = "val"


def wanted(row: DatasetSpec | None) -> dict[str, tuple[str, ...]]:
    """Our split -> the names it may have, in order of preference.

    A registered row asks for its official splits only; where the hub names one otherwise (Food-101's test is
    `validation`), that name comes first, because another split may bear ours.
    """
    if row is None:
        return dict(WORDS)
    choices = {}
    for ours in row.sizes:
        theirs = row.splits.get(ours, ours)
        family = next((words for words in WORDS.values() if theirs in words), ())
        choices[ours] = tuple(dict.fromkeys((theirs, *family, *WORDS[ours])))
    return choices


def choose(
    found: Mapping[str, T], want: Mapping[str, tuple[str, ...]], where: str, *, strict: bool
) -> dict[str, T]:
    """Pick from what was found; `strict` (a registered data set) makes its validation split a duty too."""
    chosen = {}
    for ours, names in want.items():
        name = next((name for name in names if name in found), None)
        if name is not None:
            chosen[ours] = found[name]
        elif strict or ours != OPTIONAL:
            raise UserError(
                f"{where} has no {ours} split ({_listing(found)}); a data set has train/ and test/ "
                "with class folders in them, or train-*.parquet and test-*.parquet files; val is optional"
            )
    return chosen


def _listing(found: Iterable[str]) -> str:
    names = sorted(found)
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"it has {shown}" if names else "it is empty"
