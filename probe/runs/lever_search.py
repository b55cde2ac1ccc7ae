"""The greedy search of `probe improve`: levers from cheap to dear, within the time it is given, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError
from probe.evaluation.judging import EQUAL
from probe.recipe import Recipe
from probe.runs import levers
from probe.runs.judgement import Judgement, TrainingImages
from probe.runs.lever_costs import Costs
from probe.runs.levers import Lever, Situation
from probe.runs.run import check
from probe.runs.strategy import choose
from probe.system.atomic import write_atomic
from probe.system.sealed_json import sealed, unsealed
from probe.system.time_limit import TimeUp, time_limit

JUDGED = "judged.json"
STATISTICS = ("overall", "mean_per_class", "easy", "medium", "hard")
WRITING = 10.0  # seconds for the table, the page and the charts


@dataclass(frozen=True)
class Step:
    """A lever and what became of it."""

    name: str
    recipe: Recipe | None = None  # with the lever; None where it could not be applied
    judgement: Judgement | None = None
    accuracy: Mapping[str, float] | None = None  # by statistic, on held-out training images
    gain: Mapping[str, Mapping[str, Any]] | None = None  # over what had been kept before, by statistic
    kept: bool = False
    why: str = ""  # it was not kept, or not tried

    @property
    def seconds(self) -> float:
        """What judging it took."""
        return 0.0 if self.judgement is None else self.judgement.seconds


class Memory:
    """Judgements by recipe, and the seconds that were spent, in a file of the work folder."""

    def __init__(self, work: Path, digest: str) -> None:
        self.path, self.digest = work / JUDGED, digest
        self.rows: dict[str, Any] = {}
        self.before = 0.0  # seconds that earlier calls have spent
        self._begin = time.perf_counter()
        try:
            body = unsealed(reading.text(self.path))
        except (OSError, ValueError):
            return
        if body.get("digest") == digest:
            self.rows, self.before = body["rows"], float(body["seconds"])

    @property
    def seconds(self) -> float:
        """Spent so far, earlier calls included."""
        return self.before + time.perf_counter() - self._begin

    def find(self, recipe: Recipe) -> Judgement | None:
        """The judgement of this recipe, if an earlier call has made it."""
        row = self.rows.get(recipe.digest)
        return None if row is None else Judgement.restored(row)

    def keep(self, recipe: Recipe, judgement: Judgement) -> None:
        """Remember it, from now on through any kill."""
        self.rows[recipe.digest] = judgement.stored()
        self.save()

    def save(self) -> None:
        """Write what is known."""
        body = {"digest": self.digest, "rows": self.rows, "seconds": self.seconds}
        write_atomic(self.path, sealed(body))


class Search:
    """Tries every lever on top of what has been kept; `best` is the recipe so far."""

    def __init__(
        self,
        images: TrainingImages,
        memory: Memory,
        *,
        budget: float,
        seconds: float,
        backbones: Sequence[str] = (),
        tell: Callable[[Step], None] = lambda _: None,
        costs: Costs | None = None,
    ) -> None:
        self.images, self.memory, self.budget, self.seconds = images, memory, budget, seconds
        self.backbones, self.tell = backbones, tell
        self.work = memory.path.parent
        self.costs = costs or Costs(images)
        self.steps: list[Step] = []

    def left(self, recipe: Recipe) -> float:
        """Seconds until test images must be read, if this recipe is kept.

        Not counted are those for the runs on test images, of the plain probe and of this recipe.
        """
        reserve = WRITING + recipe.seeds * (self.plain.solving + self.now.solving)
        return self.seconds - self.memory.seconds - reserve - self.costs.testing(recipe)

    def run(self) -> list[Step]:
        """All levers in turn; those of the loss once more where features have changed since."""
        self._start()
        found = levers.levers(
            Situation(self.images.plain, self.images.counts, self.budget, tuple(self.backbones))
        )
        for lever in found:
            self._try(lever)
        kept = {step.name for step in self.steps if step.kept}
        if any(lever.kind == "features" and lever.name in kept for lever in found):
            for lever in (lever for lever in found if lever.kind == "loss" and lever.name not in kept):
                self._try(lever, again=True)
        return self.steps

    def _start(self) -> None:
        """Judge the plain probe, or say that there is no time for it."""
        plain = self.images.plain
        found = self.memory.find(plain) or self._judged_plain(plain)
        self.memory.keep(plain, found)
        self.best, self.plain, self.now = plain, found, found
        self.base = self.images.judge.scores(found.correct)
        if "hard" not in self.base:
            raise UserError("improve needs at least three classes, each with several training images")

    def _judged_plain(self, plain: Recipe) -> Judgement:
        left = self.seconds - self.memory.seconds
        try:
            with time_limit(left):
                if self.costs.extraction(plain) + self.costs.testing(plain) > left:
                    raise TimeUp
                return self.images.judgement(plain, self.work)
        except TimeUp:
            raise UserError(
                f"{self.seconds / 60:g} minutes are less than the plain probe of these images needs; "
                "give more --minutes (features that were extracted are kept)"
            ) from None

    def _try(self, lever: Lever, *, again: bool = False) -> None:
        step = self._step(lever)
        if step is None:
            return
        if again:
            step = replace(step, name=f"{step.name}, again")
        self.steps.append(step)
        self.tell(step)
        if step.kept:
            assert step.recipe is not None
            assert step.judgement is not None
            self.best, self.now = step.recipe, step.judgement

    def _step(self, lever: Lever) -> Step | None:
        """The lever on top of what has been kept; None where there is nothing to try."""
        try:
            recipe = lever.applied(self.best)
            if recipe is None or recipe.digest == self.best.digest:
                return None
            check(choose(recipe))
            judgement = self.memory.find(recipe)
            if judgement is None:
                with time_limit(self.seconds - self.memory.seconds):
                    needed, left = self.costs.judging(recipe, self.now.solving), self.left(recipe)
                if needed > left:
                    return Step(lever.name, recipe, why=f"no time: it takes {_minutes(needed)}")
                with time_limit(left):
                    judgement = self.images.judgement(recipe, self.work / recipe.digest[:8])
                self.memory.keep(recipe, judgement)
            return self._compared(lever.name, recipe, judgement)
        except TimeUp:
            self.memory.save()
            return Step(lever.name, why="no time: not finished")
        except UserError as error:
            return Step(lever.name, why=f"not possible: {error}")

    def _compared(self, name: str, recipe: Recipe, judgement: Judgement) -> Step:
        rows = judgement.judged & self.now.judged
        judge = self.images.judge.only(rows)
        mine, before, plain = (j.correct[rows] for j in (judgement, self.now, self.plain))
        gain = judge.gains(mine, before, STATISTICS)
        lost = judge.score(plain, "mean_per_class") - judge.score(mine, "mean_per_class")
        why = ""
        if not (gain["hard"]["clear"] and gain["hard"]["mean"] > 0):
            why = "worse" if gain["hard"]["clear"] else "no clear gain"
        elif round(100 * lost - self.budget, EQUAL) > 0:
            why = f"over the budget ({100 * lost:.1f})"
        scores = judge.scores(mine)
        return Step(name, recipe, judgement, scores, gain, kept=not why, why=why)


def _minutes(seconds: float) -> str:
    """`40 s`, `12 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
