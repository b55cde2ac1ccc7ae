"""Recipes side by side, above all the rows of a paper's table: ours beside the published numbers.

Every row is compared with a run of its own: the one that its table names, else erm with the same settings,
trained where the row is. Its classes are grouped by one reference model: the row that the table names, else
that same run; `groups: paper` ranks by that run's test accuracy, as the papers do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import UserError
from probe.evaluation.groups import COUNT_SCHEMES
from probe.recipe import RANKINGS, Recipe, build, library, override, place
from probe.recipe.tables import Row
from probe.runs import compare
from probe.runs import groups as grouping
from probe.runs.availability import Catalogues
from probe.runs.compare import Cell, Result
from probe.runs.naming import label, slug
from probe.runs.table import against, correct, regrouped

PAPER = RANKINGS[1]
PAPER_REMARK = (
    "groups are ranked by the reference's own test accuracy, as in the papers, which flatters any rival on "
    "hard classes; groups=crossfit ranks without test images"
)
EXTREMES = ("best", "worst")  # columns that are one class's accuracy


@dataclass(frozen=True)
class Planned:
    """A row and its recipe, or why it cannot be run here."""

    row: Row
    recipe: Recipe | None
    why_not: str | None = None
    reference: Recipe | None = None  # what its gains are measured against; None: nothing, it is the reference
    ranks: Recipe | None = None  # the run that groups its classes; None: its own
    uses: tuple[Recipe, ...] = ()  # whose run folders its method takes

    @property
    def runs(self) -> list[Recipe]:
        """Everything that the row needs, in order."""
        return [r for r in (*self.uses, self.ranks, self.reference, self.recipe) if r is not None]


@dataclass(frozen=True)
class RecipeRows:
    """What `probe compare --recipes` runs."""

    planned: Sequence[Planned]
    settings: Sequence[str] = ()  # KEY=VALUE words over those of every row

    @classmethod
    def named(cls, words: Iterable[str], settings: Sequence[str], out: Path) -> RecipeRows:
        """The rows behind names of recipes, rows and tables; `settings` override all of them."""
        rows = {row.name: row for word in words for row in library.rows(word)}
        files = {row.file for row in rows.values() if row.row is not None}
        # rows may refer to others of their table, also to some that are not asked for
        whole = [row for file in files for row in library.rows(file)]
        everything = {row.name: row for row in (*whole, *rows.values())}
        built = _Builder(everything, tuple(settings), out, Catalogues())
        planned = [built.planned(row) for row in rows.values()]
        if planned and all(p.recipe is None for p in planned):
            raise UserError(f"nothing of {planned[0].row.file} can be run: {planned[0].why_not}")
        compare.check_versus(p.recipe for p in planned if p.recipe is not None)
        return cls(planned, tuple(settings))

    def recipes(self) -> list[Recipe]:
        """Each once, after those that it needs."""
        return list({slug(r): r for p in self.planned for r in p.runs}.values())

    @property
    def key(self) -> list[str]:
        """What makes this comparison different from others."""
        return [*(p.row.name for p in self.planned), *map(slug, self.recipes())]

    def table(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The comparison, with `tables` in the papers' layout beside the published numbers."""
        found = {cell.recipe.digest: cell for cell in cells}
        rows = {p.recipe.digest: p for p in reversed(self.planned) if p.recipe is not None}

        def compared(cell: Cell, _: Sequence[Cell]) -> Result:
            return judged(rows.get(cell.recipe.digest, Planned(_BARE, cell.recipe)), found)

        def called(recipe: Recipe) -> str:
            planned = rows.get(recipe.digest)
            return label(recipe) if planned is None or planned.row.row is None else planned.row.row

        comparison = compare.table(cells, compared, called)
        tables = [_as_printed(group, found) for group in _by_table(self.planned)]
        correct([entry for table in tables for entry in table["rows"]])
        named = {entry["against"] for table in tables for entry in table["rows"] if entry["against"]}
        if len(named) == 1 and any(p.row.against for p in self.planned):
            comparison["reference"], comparison["how"] = named.pop(), None
        elif any(p.row.against for p in self.planned):
            comparison["reference"], comparison["how"] = "the row it is compared with", None
        if any(p.recipe is not None and p.recipe.groups == PAPER for p in self.planned):
            comparison["remarks"].append(PAPER_REMARK)
        if tables and self.settings:
            comparison["remarks"].append(f"not the table's own settings: {', '.join(self.settings)}")
        return {**comparison, "tables": tables}


_BARE = Row("", "", {})


@dataclass(frozen=True)
class _Builder:
    """Makes recipes of rows, which may refer to each other."""

    rows: Mapping[str, Row]
    settings: tuple[str, ...]
    out: Path
    catalogues: Catalogues

    def planned(self, row: Row) -> Planned:
        recipe, why_not = self._recipe(row)
        if recipe is None:
            return Planned(row, None, why_not)
        reference = self._other(row, row.against)
        if row.against is None:
            reference = recipe.plain
        if reference is not None and reference.digest == recipe.digest:
            reference = None
        used = tuple(r for name in row.uses.values() if (r := self._other(row, name)) is not None)
        return Planned(row, recipe, None, reference, self._other(row, row.groups_from), used)

    def _recipe(self, row: Row) -> tuple[Recipe | None, str | None]:
        mine = [word for word in self.settings if _section(word) not in row.leaves_out]
        content = override(copy.deepcopy(dict(row.content)), mine)
        for parameter, name in row.uses.items():
            other = self._other(row, name)
            if other is None:
                return None, f"{name}, whose run it needs, is not available"
            place(content, f"method.{parameter}", str(self.out / slug(other)))
        why_not = self.catalogues.why_not(content)
        return (None, why_not) if why_not else (build(content), None)

    def _other(self, row: Row, name: str | None) -> Recipe | None:
        """The recipe of another row of the same table; None where it cannot be run."""
        return None if name is None else self._recipe(self.rows[f"{row.file}/{name}"])[0]


def _section(setting: str) -> str:
    """`train` of `train.epochs=2`."""
    return setting.partition("=")[0].partition(".")[0]


def judged(planned: Planned, found: Mapping[str, Cell]) -> Result:
    """The result of a row: grouped by its reference model, compared with its reference."""
    assert planned.recipe is not None
    own, ranks, reference = (_done(r, found) for r in (planned.recipe, planned.ranks, planned.reference))
    assert own is not None
    assert own.result is not None
    ranks = ranks or reference or own
    result = own.result
    groups = _groups(planned.recipe, ranks, [row["name"] for row in result["test"]["by_class"]])
    result = regrouped(result, own.folder, groups)
    if ranks is not own:
        result |= {"groups_by": planned.recipe.groups, "groups_from": ranks.folder.name}
    if reference is None or reference is own:
        return result
    return against(result, own.folder, reference.folder)


def _done(recipe: Recipe | None, found: Mapping[str, Cell]) -> Cell | None:
    cell = None if recipe is None else found.get(recipe.digest)
    return None if cell is None or cell.result is None else cell


def _groups(recipe: Recipe, ranks: Cell, names: Sequence[str]) -> Mapping[str, list[int]]:
    """The classes in the groups of the run `ranks`."""
    if recipe.groups == PAPER:
        return grouping.from_run(ranks.folder, names)
    assert ranks.result is not None
    return grouping.of_result(ranks.result, names)


def _by_table(planned: Iterable[Planned]) -> list[list[Planned]]:
    """The rows of tables, each table and variant by itself."""
    tables: dict[tuple[str, str | None], list[Planned]] = {}
    for p in planned:
        if p.row.row is not None:
            tables.setdefault((p.row.file, p.row.variant), []).append(p)
    return list(tables.values())


def _as_printed(planned: Sequence[Planned], found: Mapping[str, Cell]) -> dict[str, Any]:
    """A table of a paper as plain data: our accuracies, the published ones, and the difference."""
    first = planned[0].row
    return {
        "name": first.file,
        "variant": first.variant,
        "paper": first.paper,
        "table": first.table,
        "title": first.about,
        "columns": list(first.columns),
        "rows": [_printed_row(p, found) for p in planned],
    }


def _printed_row(p: Planned, found: Mapping[str, Cell]) -> dict[str, Any]:
    cell = found.get(p.recipe.digest) if p.recipe is not None else None
    result = None if cell is None or cell.result is None else judged(p, found)
    versus = (result or {}).get("versus") or {}
    reference = found.get(p.reference.digest) if p.reference is not None and versus else None
    return {
        "name": p.row.name,
        "row": p.row.row,
        "title": p.row.title,
        "method": None if p.recipe is None else label(p.recipe),
        "run": None if result is None or cell is None else cell.folder.name,
        "against": None if reference is None else p.row.against or label(reference.recipe),
        "why_not": p.why_not,
        "error": None if cell is None else cell.error,
        "ours": list(p.row.ours),
        "note": p.row.note,
        "statistics": {
            column: _statistic(result, column, p.row.columns, (p.row.published or {}).get(column))
            for column in p.row.columns
        },
    }


def _statistic(
    result: Result | None, column: str, columns: Sequence[str], published: float | None
) -> dict[str, Any]:
    """One cell: our accuracy and its interval, the published number, and ours minus that; all fractions."""
    accuracy, ci, gain = (None, None, None) if result is None else _measured(result, column, columns)
    printed = None if published is None else published / 100
    difference = None
    if accuracy is not None and printed is not None:
        shifted = None if ci is None else [end - printed for end in ci]
        difference = {"mean": accuracy - printed, "ci": shifted}
    return {"accuracy": accuracy, "ci": ci, "gain": gain, "published": printed, "difference": difference}


def _measured(result: Result, column: str, columns: Sequence[str]) -> tuple[Any, Any, Any]:
    """Accuracy, interval and gain of a column; "medium" is that of the scheme which its neighbours name."""
    test, versus = result["test"], result.get("versus") or {}
    if column == "overall":
        return test["top1"], test["ci"], (versus.get("gain") or {}).get(column)
    if column in EXTREMES:
        return test[column]["accuracy"], None, None
    scheme = next((s for s in COUNT_SCHEMES if (set(s.split("/")) - set(test["groups"])) & set(columns)), "")
    groups, gains = test["groups"], versus.get("gain") or {}
    if scheme:
        groups = (test.get("count_groups") or {}).get(scheme) or {}
        gains = (versus.get("count_gain") or {}).get(scheme) or {}
    block = groups.get(column) or {"accuracy": None, "ci": None}
    return block["accuracy"], block["ci"], gains.get(column)
