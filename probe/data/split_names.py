"""Which folder or file group serves as which of our splits: train, test and, where there is one, val."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from probe.data.catalogue import DatasetSpec
from probe.errors import UserError, nearest

T = TypeVar("T")

WORDS = {  # the names people give to each split; the first is ours or the hub's
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev"),
    "test": ("test", "testing"),
}
OPTIONAL = "val"


def is_split(name: str, *ours: str) -> bool:
    """Is it a name of a split, or of one of `ours`? Case does not matter: `Train` is one too."""
    return any(name.lower() in WORDS[split] for split in ours or WORDS)


def wanted(
    row: DatasetSpec | None = None, named: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Our split -> the names it may have, in order of preference.

    A registered row asks for its official splits only; where the hub names one otherwise (Food-101's test is
    `validation`), that name comes first, because another split may have ours. A split that the user names has
    that name alone, and no other split has it.
    """
    choices = dict(WORDS)
    if row is not None:
        choices = {}
        for ours in row.sizes:
            theirs = row.splits.get(ours, ours)
            family = next((words for words in WORDS.values() if theirs in words), ())
            choices[ours] = tuple(dict.fromkeys((theirs, *family, *WORDS[ours])))
    named = named or {}
    for ours in named:
        if ours not in WORDS:
            raise UserError(f'data.splits: there is no split "{ours}"{nearest(ours, WORDS)}')
    free = {ours: tuple(n for n in names if n not in named.values()) for ours, names in choices.items()}
    return {**free, **{ours: (name,) for ours, name in named.items()}}


def choose(
    found: Mapping[str, T], want: Mapping[str, tuple[str, ...]], where: str, must: Collection[str] = ()
) -> dict[str, T]:
    """Choose our splits; those in `must` have to be there.

    Else train is enough, from which test images are then cut; and all that there is serves as train, whatever
    its name.
    """
    chosen = {}
    spelt = {name.lower(): name for name in found}
    for ours, names in want.items():
        name = next((n for word in names for n in (word, spelt.get(word, word)) if n in found), None)
        if name is not None:
            chosen[ours] = found[name]
        elif ours in must and len(names) == 1:
            raise UserError(
                f'{where} has no split "{names[0]}"{nearest(names[0], found)} to serve as {ours} '
                f"({_listing(found)})"
            )
        elif ours in must:
            raise _missing(ours, found, where)
    if "train" not in chosen:
        if len(found) != 1 or chosen:
            raise _missing("train", found, where)
        chosen["train"] = next(iter(found.values()))
    return chosen


def _missing(ours: str, found: Iterable[str], where: str) -> UserError:
    return UserError(
        f"{where} has no {ours} split ({_listing(found)}); a data set has train/ and test/ with class "
        "folders in them, or train-*.parquet and test-*.parquet files; val is optional, and data.splits."
        f"{ours}=NAME says what serves as {ours}"
    )


def _listing(found: Iterable[str]) -> str:
    names = sorted(found)
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"it has {shown}" if names else "it is empty"
