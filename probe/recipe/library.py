"""Recipes by name: those that come with the package, from anywhere, and files of your own.

    mr2/pets                          a recipe
    mr2/table1-cifar100               a table of a paper
    mr2/table1-cifar100/fairdro       one of its rows
    my/table.yaml/fairdro             the same in a file of yours

No torch here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from probe.errors import UserError, nearest
from probe.recipe import tables
from probe.recipe.parse import read
from probe.recipe.tables import Row

SUFFIX = ".yaml"


def shipped() -> dict[str, Path]:
    """The files that come with the package, by name, `mr2/pets`."""
    folder = Path(str(resources.files("probe") / "recipes"))
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(folder.glob(f"*/*{SUFFIX}"))}


def every() -> list[Row]:
    """Every shipped recipe, and every row of every shipped table."""
    return [row for name, path in shipped().items() for row in _of_file(path, name)]


def rows(word: str) -> list[Row]:
    """What a word names: all rows of a table, one of them, or a recipe by itself."""
    path, name, row = _found(word)
    all_of_it = _of_file(path, name)
    if row is None:
        return all_of_it
    if all_of_it[0].row is None:
        raise UserError(f'{name} is a recipe without rows, so there is no "{row}" in it; leave that out')
    chosen = [r for r in all_of_it if r.row == row]
    if not chosen:
        known = [r.row for r in all_of_it if r.row is not None]
        raise UserError(
            f'{name} has no row "{row}"{nearest(row, known)}; `probe recipes` lists the shipped ones'
        )
    return chosen


def content(word: str, given: Sequence[str] = ()) -> dict[str, Any]:
    """The raw content of the one recipe that a word names; a whole table is refused.

    `given` are KEY=VALUE words, with which a row that needs the run of another must be told where that is.
    """
    named = rows(word)
    if len(named) == 1 and (named[0].row is None or _found(word)[2] is not None):
        _check_uses(named[0], {setting.partition("=")[0] for setting in given})
        return copy.deepcopy(dict(named[0].content))
    raise UserError(
        f"{word} is a table of {len(named)} rows: run one of them, {word}/{named[0].row}, "
        f"or all with `probe compare --recipes {word}`"
    )


def _check_uses(row: Row, given: set[str]) -> None:
    for parameter, other in row.uses.items():
        if f"method.{parameter}" not in given:
            raise UserError(
                f"{row.name} needs the run of {row.file}/{other}: give its folder, method.{parameter}=RUN, "
                f"or run both with `probe compare --recipes {row.name}`"
            )


def _found(word: str) -> tuple[Path, str, str | None]:
    """The file that a word names, what it is called, and the row in it. A file of yours comes first."""
    path, known = Path(word), shipped()
    above, _, last = word.rpartition("/")
    if _is_there(path) or path.suffix == SUFFIX:
        return path, word, None
    if above and _is_there(Path(above)):
        return Path(above), above, last
    if word in known:
        return known[word], word, None
    if above in known:
        return known[above], above, last
    raise UserError(
        f"cannot read recipe {word:.200}: there is no such file, and no recipe of that name"
        f"{nearest(word, known)}; `probe recipes` lists those that come with the package"
    )


def _is_there(path: Path) -> bool:
    """Is there anything but a folder? What is not a readable file, `read` refuses."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _of_file(path: Path, name: str) -> list[Row]:
    found = read(path)
    return tables.rows_of(found, name) if tables.is_table(found) else [Row(name, name, found)]
