"""Rows that other installed packages add: each is a Python entry point, and its name is the row's name.

    [project.entry-points."mr2_probe.losses"]       # or .backbones, .datasets, .methods
    my-loss = "my_package:MY_LOSS"

Entry points are only read for names that are not built in, and for lists, so that nobody pays for packages
that are not used. One that fails is one line: an error for whoever asked for it, a warning in a list.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from backbones.errors import UserError, reason


def names(kind: str) -> list[str]:
    """The names that installed packages add to a kind: "backbones", "datasets", "losses" or "methods"."""
    return sorted(_points(kind))


def find(kind: str, name: str, row_type: type[Any]) -> Any | None:
    """The row of this name that a package adds; None if there is none."""
    points = _points(kind).get(name)
    return _load(points, row_type) if points else None


def rows(kind: str, row_type: type[Any], taken: Collection[str] = ()) -> Iterator[Any]:
    """All rows that packages add, by name; one that fails, or whose name is taken, is a line on stderr."""
    for name, points in sorted(_points(kind).items()):
        try:
            if name in taken:
                raise UserError(f"{_called(points[0])} is ignored: the name is taken")
            yield _load(points, row_type)
        except UserError as error:
            print(f"warning: {error}", file=sys.stderr)


def _points(kind: str) -> dict[str, list[EntryPoint]]:
    """The entry points of a kind by their names; usually one each."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"mr2_probe.{kind}"):
        found.setdefault(point.name, []).append(point)
    return found


def _called(point: EntryPoint) -> str:
    return f'plug-in "{point.name}" ({point.value})'


def _load(points: list[EntryPoint], row_type: type[Any]) -> Any:
    point, *others = points
    if others:
        raise UserError(f"{_called(point)} and {_called(others[0])} have one name; uninstall a package")
    try:
        row = point.load()
    except (Exception, SystemExit) as error:  # whatever somebody else's module does
        raise UserError(
            f"{_called(point)} cannot be loaded: {reason(error)[:300]}; update or uninstall its package"
        ) from error
    if not isinstance(row, row_type):
        kinds = f"a {type(row).__name__}, not a {row_type.__module__}.{row_type.__name__}"
        raise UserError(f"{_called(point)} is {kinds}")
    if row.name != point.name:
        raise UserError(
            f'{_called(point)} calls itself "{row.name}"; the entry point must have the same name'
        )
    return row
