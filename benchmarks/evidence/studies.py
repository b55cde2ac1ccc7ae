"""The studies of recipes/evidence, and the runs that they are made of."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.evidence import outcomes
from benchmarks.evidence.outcomes import Published, StudyOutcomes
from probe.errors import UserError
from probe.recipe import library
from probe.recipe.tables import Row
from probe.report.text import format
from probe.runs.compare import NO_TIME, Cell, fill
from probe.runs.recipe_rows import Planned, RecipeRows

PARTS = ("frozen", "margins", "finetune", "scratch", "long-tail")  # in this order; tables in recipes/evidence
FIRST = 2  # seeds of everything, before the rest
FOLDERS = {"pets": "Oxford-IIIT Pets", "cifar100": "CIFAR-100"}  # data that is not in the package

NO_FOLDER, WITHOUT = "its data was not given", "left out by --without"
PASSING = (NO_FOLDER, WITHOUT, NO_TIME)  # reasons of one command, which are not published

Missing = dict[str, dict[str, str]]  # "frozen pets": why a row was not run, or not with all of its seeds


@dataclass(frozen=True)
class Study:
    """The rows of one variant of a table: one data set, one backbone."""

    part: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """`pets-lt99`."""
        return self.rows[0].variant or self.part

    @property
    def title(self) -> str:
        """`frozen pets-lt99`."""
        return f"{self.part} {self.name}"

    @property
    def data(self) -> str:
        """The catalogue's name of its data set."""
        found = self.rows[0].content.get("data", "digits")
        return str(found["name"] if isinstance(found, Mapping) else found)

    def row(self, name: str) -> Row:
        """The one of this name."""
        return next(row for row in self.rows if row.name == name)

    def seeds(self, row: Row) -> int:
        """How many the table says; a second stage, which takes another row's run, has its first seed."""
        return 1 if row.uses else int(row.content.get("seeds", 1))

    def settings(self, row: Row) -> str:
        """A digest of all that the table says of a row, and of those that it uses, but their seeds: another
        one is another experiment."""
        content = {key: value for key, value in row.content.items() if key != "seeds"}
        used = {
            parameter: self.settings(self.row(f"{row.file}/{name}")) for parameter, name in row.uses.items()
        }
        content |= {"uses": used} if used else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def studies(part: str) -> list[Study]:
    """The variants of a part's table, in its order."""
    rows: dict[str | None, list[Row]] = {}
    for row in library.rows(f"evidence/{part}"):
        rows.setdefault(row.variant, []).append(row)
    return [Study(part, tuple(found)) for found in rows.values()]


@dataclass(frozen=True)
class Runner:
    """Runs what is not published yet, and publishes it."""

    folders: Mapping[str, str | None]
    cache: Path | None
    out: Path
    until: float  # of the monotonic clock
    published: Published
    without: Sequence[str] = ()  # methods whose rows are not run
    most: int | None = None  # seeds of a row; None: as many as its table says
    earlier: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # study: seeds of its rows' lines

    def gather(self, chosen: Sequence[Study]) -> Missing:
        """Studies, first with few seeds, then with as many as wanted. Why rows are still missing."""
        missing: Missing = {}
        for seeds in dict.fromkeys((min(FIRST, self.most or FIRST), self.most)):
            for study in chosen:
                said = f"{study.title}, {format.plural(seeds, 'seed') if seeds else 'all seeds'}"
                print(f"{said} ...", flush=True)
                missing[study.title] = self._finish(study, seeds)
                print(f"{said}: {len(study.rows) - len(missing[study.title])} rows are there", flush=True)
        return missing

    def _finish(self, study: Study, seeds: int | None) -> dict[str, str]:
        """Run and publish what is missing of a study while there is time; why rows are still missing."""
        wanted = {row.name: min(seeds or study.seeds(row), study.seeds(row)) for row in study.rows}
        known = self.published.of(study.part, study.name)
        here = {} if known is None else known.seeds({row.name: study.settings(row) for row in study.rows})
        earlier = self.earlier.get(study.title, {})
        seen = {row.name: max(here.get(row.name, 0), earlier.get(row.name, 0)) for row in study.rows}
        open_rows = [row for row in study.rows if seen[row.name] < wanted[row.name]]
        folder = self.folders.get(study.data)
        if study.data in FOLDERS and folder is None:
            return dict.fromkeys((row.name for row in open_rows), NO_FOLDER)
        missing = {row.name: WITHOUT for row in open_rows if row.title in self.without}
        todo: dict[range, list[str]] = {}  # by the seeds that they lack
        for name in _with_references(study, [row for row in open_rows if row.name not in missing]):
            if lacking := range(here.get(name, 0), wanted[name]):
                used = [f"{study.row(name).file}/{other}" for other in study.row(name).uses.values()]
                if used:  # with as many seeds as its run has or will have, so that it is not run again
                    run = None if known is None else known.rows.get(used[0])
                    lacking = range(wanted[used[0]] if run is None else run.runs[0].seeds)
                todo.setdefault(lacking, []).append(name)
        for lacking, names in todo.items():
            missing |= self._run(study, names, lacking, folder)
        return missing

    def _run(self, study: Study, names: Sequence[str], seeds: range, folder: str | None) -> dict[str, str]:
        """Run rows with these seeds, and publish each as it is finished; why some are still missing."""
        settings = [f"data.root={folder}"] if folder else []
        settings += [f"seeds={len(seeds)}", f"first_seed={seeds.start}"]
        try:
            plan = RecipeRows.named(names, settings, self.out)
        except UserError as error:
            return dict.fromkeys(names, str(error))
        # rows of a study are compared by what is published of them, so a run needs only what it learns from
        plan = replace(plan, planned=[replace(p, reference=None, ranks=None) for p in plan.planned])
        rows = {p.recipe.digest: p for p in plan.planned if p.recipe is not None}

        refused = {}

        def publish(cell: Cell) -> None:
            planned = rows.get(cell.recipe.digest)
            if planned is not None and cell.result is not None:
                try:
                    self.published.add(study_outcome(study, planned, cell))
                except UserError as error:
                    refused[planned.row.name] = str(error)

        left = max(self.until - time.monotonic(), 0) / 60
        minutes = None if math.isinf(left) else left
        cells = fill(plan, publish, cache=self.cache, out=self.out, minutes=minutes)
        found = {cell.recipe.digest: cell for cell in cells}
        why = {p.row.name: p.why_not or _failure(p, found) or refused.get(p.row.name) for p in plan.planned}
        return {name: text for name, text in why.items() if text}


def _with_references(study: Study, rows: Sequence[Row]) -> list[str]:
    """The names of rows, after those that their gains are measured against."""
    pairs = ((reference(study, row), row.name) for row in rows)
    return list(dict.fromkeys(name for pair in pairs for name in pair if name is not None))


def reference(study: Study, row: Row) -> str | None:
    """The row that its gains are measured against: the one that the table names, else erm of its settings."""
    if row.against is not None:
        return f"{row.file}/{row.against}"
    own = {**row.content, "method": "erm"}
    if own == dict(row.content):
        return None
    return next(other.name for other in study.rows if dict(other.content) == own)


def _failure(planned: Planned, found: Mapping[str, Cell]) -> str | None:
    """Why a row has no result."""
    errors: Iterator[str | None] = (
        found[r.digest].error for r in planned.runs if found[r.digest].result is None
    )
    return next((error or "it failed" for error in errors), None)


def study_outcome(study: Study, planned: Planned, cell: Cell) -> StudyOutcomes:
    """A finished row, as it is published."""
    recipe, result = planned.recipe, cell.result
    assert recipe is not None
    assert result is not None
    about: dict[str, Any] = {
        "method": planned.row.title,
        "selection": recipe.select.name,
        "settings": study.settings(planned.row),
    }
    return outcomes.of_run(
        cell.folder,
        result,
        part=study.part,
        name=study.name,
        title=planned.row.about,
        backbone=recipe.backbone.title,
        row=planned.row.name,
        about=about,
    )
