"""What a reader of data is asked for: the same for every kind of source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from probe.data import split_names
from probe.data.catalogue import DatasetSpec


@dataclass(frozen=True)
class Request:
    """Which splits and columns to read, by the names that people or a registered row give them."""

    want: Mapping[str, tuple[str, ...]] = field(default_factory=split_names.wanted)  # ours -> its names
    must: frozenset[str] = frozenset()  # the splits that have to be there
    strict: bool = False  # a registered data set: all of them, under official names
    image: tuple[str, ...] = ()  # column hints, tried in this order
    label: tuple[str, ...] = ()
    image_named: str | None = None  # the column itself, as the user names it: no other will do
    label_named: str | None = None
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # class names, by column
    classes: int | None = None  # their official number, where no names are stored
    configuration: str | None = None  # of several data sets in one folder
    cache: str | Path | None = None  # where digests are remembered

    @classmethod
    def of(
        cls,
        row: DatasetSpec | None,
        *,
        image: str | None = None,
        label: str | None = None,
        splits: Mapping[str, str] | None = None,
        configuration: str | None = None,
        cache: str | Path | None = None,
    ) -> Request:
        """What a registered row (None: any data) and the user's own names ask for."""
        want = split_names.wanted(row, splits)
        return cls(
            want=want,
            must=frozenset(want if row is not None else splits or ()),
            strict=row is not None,
            image=row.image if row else (),
            label=row.label if row else (),
            image_named=image,
            label_named=label,
            classes=row.classes if row else None,
            configuration=configuration,
            cache=cache,
        )
