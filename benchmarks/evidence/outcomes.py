"""What each row of a study got right, image by image, small enough to be published.

    results/outcomes/frozen-pets-both.json

Every table, interval and figure follows from these files: they can be checked, and added to, with no run.
Test images are in the order of their classes: a string of bits for each seed says which of them it got right
(base64, eight images a byte), and nothing else of an image is published.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation.summary import EvaluationSet, MethodOutcome
from probe.runs import groups as grouping
from probe.runs.pairing import predictions_of
from probe.system.atomic import write_atomic

FOLDER = "outcomes"
FORMAT = 1
SIGNS = ("spread2", "gamma")  # of a method's margins, by class


@dataclass(frozen=True)
class RunOfRow:
    """A run that a row's outcomes are from: some of its seeds."""

    run: str
    commit: str | None  # of the program
    first_seed: int
    seeds: int  # asked for; one is run where all give the same head
    seconds: int


@dataclass(frozen=True)
class RowOutcome:
    """A finished row of a study."""

    recipe: str  # its name: `probe run evidence/frozen/la-budget-pets-both`
    method: str  # as the table prints it
    selection: str  # what its parameters were chosen for
    settings: str  # a digest of all that the table says of it but the seeds
    learnt_from: str  # a digest of weights, method and, where all seeds have the same, training images
    runs: tuple[RunOfRow, ...]  # in the order of their seeds
    groups: Mapping[str, list[int]]  # its own ranking: classes of each group
    signs: Mapping[str, list[float | None]]  # K: what was known of each class before the head was trained
    correct: NDArray[np.bool_]  # S x N

    @property
    def seeds(self) -> int:
        """How many have been asked for."""
        return self.runs[-1].first_seed + self.runs[-1].seeds

    def then(self, later: RowOutcome) -> RowOutcome:
        """The same with the seeds that a later run adds, in the groups of the first.

        Another experiment of the same name takes its place if it begins anew.
        """
        first = later.runs[0].first_seed
        if (later.settings, later.learnt_from) != (self.settings, self.learnt_from):
            if first == 0:
                return later
            raise UserError(f"{self.recipe}: the published seeds are of other settings, weights or images")
        if first > self.seeds:
            raise UserError(f"{self.recipe}: seeds from {first} on do not follow {self.seeds} published ones")
        if later.seeds <= self.seeds:
            return self
        alike = len(self.correct) < self.seeds  # one stands for all
        more = later.correct[:0] if alike else later.correct[self.seeds - first :]
        return replace(self, runs=self.runs + later.runs, correct=np.concatenate([self.correct, more]))

    def stored(self) -> dict[str, Any]:
        """As JSON."""
        bits = [base64.b64encode(np.packbits(seed).tobytes()).decode() for seed in self.correct]
        return {**asdict(self), "correct": bits}

    @classmethod
    def restored(cls, content: Mapping[str, Any], images: int, classes: int) -> RowOutcome:
        """The inverse of `stored`, for this number of test images and classes."""
        runs = tuple(RunOfRow(**run) for run in content["runs"])
        rows = [np.frombuffer(base64.b64decode(bits, validate=True), np.uint8) for bits in content["correct"]]
        if {row.size for row in rows} != {(images + 7) // 8}:
            raise ValueError(f"{content['recipe']} has not one bit for each of {images} test images")
        bits = np.unpackbits(np.stack(rows), axis=1)
        found = cls(**{**content, "correct": bits[:, :images].astype(bool), "runs": runs})
        members = [k for group in found.groups.values() for k in group]
        if bits[:, images:].any() or len(rows) not in {1, found.seeds}:
            raise ValueError(f"{found.recipe} has other test images or seeds")
        if not set(members) <= set(range(classes)) or not members:
            raise ValueError(f"{found.recipe} groups other classes")
        return found


@dataclass(frozen=True)
class StudyOutcomes:
    """The finished rows of one data set and one backbone."""

    part: str
    study: str
    title: str  # as the tables print it
    backbone: str
    test: str  # fingerprint of the test images
    classes: tuple[str, ...]
    tested: list[int]  # K: test images of each class
    trained: list[int] | None  # K: training images, where runs say them
    rows: Mapping[str, RowOutcome] = field(default_factory=dict)  # by recipe

    @property
    def labels(self) -> NDArray[np.int64]:
        """N: the class of each test image."""
        return np.repeat(np.arange(len(self.tested)), self.tested)

    def eval_set(self, groups: Mapping[str, list[int]]) -> EvaluationSet:
        """What rows are evaluated on, with classes in these groups."""
        trained = None if self.trained is None else np.array(self.trained, dtype=np.int64)
        return EvaluationSet(self.labels, self.classes, groups, trained)

    def seeds(self, settings: Mapping[str, str]) -> dict[str, int]:
        """How many seeds each row has, of those that have these settings, by recipe."""
        return {name: row.seeds for name, row in self.rows.items() if settings.get(name) == row.settings}

    def then(self, new: StudyOutcomes) -> StudyOutcomes:
        """The same with the rows of `new`, whose seeds follow its own."""
        if (new.test, new.classes, new.tested) != (self.test, self.classes, self.tested):
            raise UserError(
                f"the outcomes of {self.part} {self.study} are of other test images than these; give another "
                "--results, or remove them"
            )
        rows = dict(self.rows)
        for name, row in new.rows.items():
            rows[name] = rows[name].then(row) if name in rows else row
        return replace(new, rows=rows)


def of_run(
    folder: Path,
    result: Mapping[str, Any],
    *,
    part: str,
    name: str,
    title: str,
    backbone: str,
    row: str,
    about: Mapping[str, Any],
) -> StudyOutcomes:
    """A study with one row: a run's own method on the test images. `about` are further fields of the row."""
    predicted = predictions_of(folder)
    order = np.argsort(predicted.labels, kind="stable")
    by_class = {entry["name"]: entry for entry in result["test"]["by_class"]}
    trained = [by_class[name].get("train_n") for name in predicted.class_names]
    (own, *_) = predicted.prediction
    recipe, source = result["recipe"], result["backbone"]
    images = result["data"]["fingerprints"]["train"] if recipe["data"]["shots"] is None else None
    learnt_from = json.dumps(
        [source.get("fingerprint"), result.get("method_versions"), images], sort_keys=True
    )
    ran = RunOfRow(
        folder.name,
        result["environment"].get("commit"),
        recipe.get("first_seed", 0),
        recipe["seeds"],
        round(result["timing"]["total"]),
    )
    outcome = RowOutcome(
        recipe=row,
        learnt_from=hashlib.sha256(learnt_from.encode()).hexdigest()[:12],
        runs=(ran,),
        groups=grouping.of_result(result, predicted.class_names),
        signs=_signs(result, predicted.class_names),
        correct=predicted.outcome(own).correct[:, order],
        **about,
    )
    return StudyOutcomes(
        part,
        name,
        title,
        backbone,
        test=result["data"]["fingerprints"]["test"],
        classes=predicted.class_names,
        tested=np.bincount(predicted.labels, minlength=len(predicted.class_names)).tolist(),
        trained=None if None in trained else trained,
        rows={row: outcome},
    )


def _signs(result: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, list[float | None]]:
    """Signs of difficulty, larger for harder classes."""
    found: dict[str, list[float | None]] = {}
    forecast = (result["diagnostics"].get("look_first") or {}).get("forecast")
    if forecast:  # the hardest first
        rank = {name: -float(at) for at, name in enumerate(forecast["order"])}
        found["forecast"] = [rank.get(name) for name in classes]
    margins = {row["name"]: row for row in (result.get("margins") or {}).get("by_class") or ()}
    for sign in SIGNS:
        values = [margins.get(name, {}).get(sign) for name in classes]
        if any(value is not None for value in values):
            found[sign] = [None if value is None else float(f"{value:.5g}") for value in values]
    return found


@dataclass(frozen=True)
class Published:
    """The outcomes in a folder of results."""

    results: Path

    def _path(self, part: str, study: str) -> Path:
        return self.results / FOLDER / f"{part}-{study}.json"

    def studies(self) -> list[Path]:
        """The files."""
        return sorted((self.results / FOLDER).glob("*.json"))

    def of(self, part: str, study: str) -> StudyOutcomes | None:
        """What is published of a study."""
        path = self._path(part, study)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            images, classes = sum(content["tested"]), len(content["tested"])
            if {len(content["classes"]), len(content["trained"] or content["tested"])} != {classes}:
                raise ValueError("its classes differ")
            rows = [RowOutcome.restored(row, images, classes) for row in content.pop("rows")]
            by_name = {row.recipe: row for row in rows}
            return StudyOutcomes(**{**content, "classes": tuple(content["classes"]), "rows": by_name})
        except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds no outcomes of this version ({error}); remove it") from error

    def add(self, new: StudyOutcomes) -> None:
        """Publish rows of a study; their seeds follow those that are published, or replace them."""
        path = self._path(new.part, new.study)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            before = self.of(new.part, new.study)
            found = new if before is None else before.then(new)
            rows = [row.stored() for row in found.rows.values()]
            about = asdict(replace(found, rows={}))
            lines = json.dumps({"format": FORMAT, **about, "rows": []})[: -len("[]}")]
            body = ",\n".join(json.dumps(row) for row in rows)  # a line each, so that differences can be read
            write_atomic(path, f"{lines}[\n{body}\n]}}\n")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process publishes here meanwhile, where the file system can tell."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def outcome_of(row: RowOutcome, seeds: int | None = None) -> MethodOutcome:
    """As `probe.evaluation` takes it, with so many seeds."""
    return MethodOutcome(row.method, row.correct[:seeds])
