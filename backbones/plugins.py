"""Rows that other installed packages add: each is a Python entry point, and its name is the row's name.

    [project.entry-points."mr2_probe.losses"]       # or .backbones, .datasets, .methods
    my-loss = "my_package:MY_LOSS"

Entry points are only looked at for names that are not built in, and for lists, so that nobody pays for
packages that are not used. One that fails is one line: an error for who asked for it, a warning in a list.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from backbones.errors import UserError


def names(kind: str) -> list[str]:
    """The names that installed packages add to a kind: "backbones", "datasets", "losses" or "methods"."""
    return sorted({point.name for point in _points(kind)})


def find(kind: str, name: str, row_type: type[Any]) -> Any | None:
    """The row of this name that a package adds; None if there is none."""
    points = [point for point in _points(kind) if point.name == name]
    return _load(points[0], row_type) if points else None


def rows(kind: str, row_type: type[Any]) -> Iterator[Any]:
    """All rows that packages add, by name; one that fails is a line on standard error."""
    for point in sorted(_points(kind), key=lambda point: point.name):
        try:
            yield _load(point, row_type)
        except UserError as error:
            print(f"warning: {error}", file=sys.stderr)


def _points(kind: str) -> list[EntryPoint]:
    return list(entry_points(group=f"mr2_probe.{kind}"))


def _load(point: EntryPoint, row_type: type[Any]) -> Any:
    where = f'plug-in "{point.name}" ({point.value})'
    try:
        row = point.load()
    except Exception as error:  # whatever somebody else's module does
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{where} cannot be loaded: {reason}; update or uninstall its package") from error
    if not isinstance(row, row_type):
        raise UserError(f"{where} is a {type(row).__name__}, not a {row_type.__module__}.{row_type.__name__}")
    if row.name != point.name:
        raise UserError(f'{where} calls itself "{row.name}"; the entry point must have the same name')
    return row
