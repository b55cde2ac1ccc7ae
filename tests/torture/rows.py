"""Every torture there is: one module a family, each with its `ROWS`."""

from __future__ import annotations

from fnmatch import fnmatch
from importlib import import_module

from tests.torture.kinds import Torture

# Modules of this package, in the table's order.
# what can happen
FAULTS: tuple[str, ...] = (
    "kill",
    "disk",
    "damage",
    "company",
    "processes",
    "numbers",
    "moving",
    "leftovers",
)
# what can be given
INPUTS: tuple[str, ...] = (
    "recipes",
    "images",
    "large",
    "layouts",
    "tables",
    "orders",
    "commands",
    "fuzz",
    "pickles",
    "names",
    "hostile",
    "other_users",
)


def rows(pattern: str = "*") -> list[Torture]:
    """The rows whose name holds `pattern` (or matches it, with * and ?), in the table's order."""
    found = [row for family in (*FAULTS, *INPUTS) for row in import_module(f"tests.torture.{family}").ROWS]
    return [row for row in found if pattern in row.name or fnmatch(row.name, pattern)]
