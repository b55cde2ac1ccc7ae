"""The studies of recipes/evidence, and the runs that they are made of."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.evidence import outcomes
from benchmarks.evidence.outcomes import Published, StudyOutcomes
from probe.errors import UserError
from probe.recipe import library
from probe.recipe.tables import Row
from probe.runs.compare import Cell, fill
from probe.runs.recipe_rows import Planned, RecipeRows

PARTS = ("frozen", "margins", "finetune", "scratch", "long-tail")  # in this order; tables in recipes/evidence
FIRST = 2  # seeds of everything, before the rest
FOLDERS = {"pets": "Oxford-IIIT Pets", "cifar100": "CIFAR-100"}  # data that is not in the package

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

    @property
    def draws(self) -> bool:
        """Does each seed learn from other images?"""
        found = self.rows[0].content.get("data")
        return isinstance(found, Mapping) and found.get("shots") is not None

    def seeds(self, row: Row) -> int:
        """How many the table says; a second stage, which takes another row's run, has its first seed."""
        return 1 if row.uses else int(row.content.get("seeds", 1))

    def settings(self, row: Row) -> str:
        """A digest of all that the table says of a row but its seeds: another one is another experiment."""
        content = {key: value for key, value in row.content.items() if key != "seeds"}
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

    def gather(self, chosen: Sequence[Study]) -> Missing:
        """Studies, first with few seeds, then with as many as wanted. Why rows are still missing."""
        missing: Missing = {}
        for seeds in dict.fromkeys((min(FIRST, self.most or FIRST), self.most)):
            for study in chosen:
                said = f"{study.title}, {seeds or 'all'} seeds"
                print(f"{said} ...", flush=True)
                missing[study.title] = self._finish(study, seeds)
                print(f"{said}: {len(study.rows) - len(missing[study.title])} rows", flush=True)
        return missing

    def _finish(self, study: Study, seeds: int | None) -> dict[str, str]:
        """Run and publish what is missing of a study while there is time; why rows are still missing."""
        wanted = {row.name: min(seeds or study.seeds(row), study.seeds(row)) for row in study.rows}
        known = self.published.of(study.part, study.name)
        here = {} if known is None else known.seeds({row.name: study.settings(row) for row in study.rows})
        open_rows = [row for row in study.rows if here.get(row.name, 0) < wanted[row.name]]
        folder = self.folders.get(study.data)
        if study.data in FOLDERS and folder is None:
            return {row.name: f"no --{study.data} was given" for row in open_rows}
        missing = {row.name: "left out by --without" for row in open_rows if row.title in self.without}
        todo: dict[range, list[Row]] = {}  # by the seeds that they lack
        for row in open_rows:
            if row.name not in missing:
                todo.setdefault(range(here.get(row.name, 0), wanted[row.name]), []).append(row)
        for lacking, rows in todo.items():
            done = {name for name in here if here[name] >= lacking.stop}
            missing |= self._run(study, rows, lacking, done, folder)
        return missing

    def _run(
        self, study: Study, rows: Sequence[Row], seeds: range, done: Set[str], folder: str | None
    ) -> dict[str, str]:
        """Run and publish rows with these seeds, as `done` rows are; why some are still missing."""
        settings = [f"data.root={folder}"] if folder else []
        settings += [f"seeds={len(seeds)}", f"first_seed={seeds.start}"]
        settings += [f"data.draw={seeds.start}"] if study.draws else []
        missing: dict[str, str] = {}
        try:
            plan = RecipeRows.named([row.name for row in rows], settings, self.out)
        except UserError as error:
            return {row.name: str(error) for row in rows}
        plan = replace(plan, planned=[_alone(p, study, done) for p in plan.planned])
        left = max(self.until - time.monotonic(), 0) / 60
        cells = fill(plan, cache=self.cache, out=self.out, minutes=None if math.isinf(left) else left)
        found = {c.recipe.digest: c for c in cells}
        for planned in plan.planned:
            if why := planned.why_not or _failure(planned, found):
                missing[planned.row.name] = why
            else:
                assert planned.recipe is not None
                self.published.add(study_outcome(study, planned, found[planned.recipe.digest]))
        return missing


def _alone(planned: Planned, study: Study, published: Set[str]) -> Planned:
    """Without the run that it is compared with, where that is published and need not be on this machine."""
    name = reference(study, planned.row)
    return replace(planned, reference=None) if name in published else planned


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
        "against": reference(study, planned.row),
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
