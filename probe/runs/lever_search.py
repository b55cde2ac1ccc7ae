"""The greedy search of `probe improve`: rounds of levers, within the time it is given, resumable.

A round judges its levers from cheap to dear, each on top of what has been kept so far, and keeps the best of
those that pass. Losses come first, because they cost only solves; then features, round by round until
nothing is kept, each with another round of losses on the new features; trainings come last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError
from probe.evaluation.judging import EQUAL
from probe.recipe import Recipe
from probe.runs import levers
from probe.runs.judgement import Judgement, TrainingImages
from probe.runs.lever_costs import Costs
from probe.runs.levers import FEATURES, LOSSES, TRAININGS, Lever, Situation
from probe.runs.run import check
from probe.runs.strategy import choose
from probe.system.atomic import write_atomic
from probe.system.sealed_json import sealed, unsealed
from probe.system.time_limit import TimeUp, time_limit

JUDGED = "judged.json"
STATISTICS = ("overall", "mean_per_class", "easy", "medium", "hard")
WRITING = 20.0  # seconds for the diagnostics, the tables and the pages
# Two-sided p-values below which hard classes gain. Against what was kept before, likely is enough: the
# lower end of the 80 % interval is above 0. Against the plain probe it must be clear at 95 %.
LIKELY, CLEAR = 0.2, 0.05

Gains = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Step:
    """A lever and what became of it."""

    name: str
    kind: levers.Kind
    recipe: Recipe | None = None  # with the lever; None where it could not be applied
    judgement: Judgement | None = None
    accuracy: Mapping[str, float] | None = None  # by statistic, on held-out training images
    gain: Gains | None = None  # over what had been kept before, by statistic
    over_plain: Gains | None = None  # of all that had been kept and this, by statistic
    kept: bool = False
    why: str = ""  # it was not kept, or not tried; empty for what passes

    @property
    def seconds(self) -> float:
        """What judging it took."""
        return 0.0 if self.judgement is None else self.judgement.seconds

    @property
    def hard(self) -> float:
        """The gain on hard classes; minus infinity where it is not known."""
        return float("-inf") if self.gain is None else float(self.gain["hard"]["mean"])


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
        self.ahead: Step | None = None  # of this round: the best that passes
        self.idle: set[str] = set()  # of this round: what gained nothing
        self.met: set[str] = set()  # of this round: digests of the recipes that were tried

    def left(self, recipe: Recipe) -> float:
        """Seconds until test images must be read, if this recipe is kept, or the best so far."""
        ahead = [] if self.ahead is None or self.ahead.recipe is None else [self.ahead.recipe]
        return self.seconds - self.memory.seconds - max(map(self._reserve, [self.best, *ahead, recipe]))

    def _reserve(self, recipe: Recipe) -> float:
        """Of the runs of the plain probe and of this recipe, and of what is written about them."""
        plain = self.plain.solving
        exact = not recipe.trains and recipe.method.name != self.images.plain.method.name
        fitted = [recipe, recipe.plain] if exact else [recipe]  # a run of a method solves erm beside it
        heads = recipe.seeds * (plain + sum(self.costs.solving(r, plain) for r in fitted))
        return WRITING + heads + self.costs.testing(recipe)

    def run(self) -> list[Step]:
        """All rounds; what was tried is in `steps`."""
        self._start()
        found = levers.levers(
            Situation(self.images.plain, self.images.counts, self.budget, tuple(self.backbones))
        )
        losses, features, trainings = (
            [lever for lever in found if lever.kind in kinds] for kinds in (LOSSES, FEATURES, TRAININGS)
        )
        self._round(losses)
        while self._round(features):
            self._round(losses)
        self._round(trainings)
        return self.steps

    def _round(self, found: Sequence[Lever]) -> bool:
        """Judge each lever on top of what has been kept, and keep the best that passes. Is there one?"""
        begin, self.ahead, self.idle, self.met = len(self.steps), None, set(), {self.best.digest}
        for lever in self._by_cost(found):
            step = self._step(lever)
            if step is None:
                continue
            earlier = [before for before in self.steps[:begin] if before.name == step.name]
            if earlier and earlier[0].gain is None and step.gain is None:
                continue  # said already
            if earlier:
                step = replace(step, name=f"{step.name}, again")
            self.steps.append(step)
            self.tell(step)
            if step.gain is not None and step.hard <= 0:
                self.idle.add(lever.name)
            if not step.why and (self.ahead is None or step.hard > self.ahead.hard):
                self.ahead = step
        if self.ahead is None:
            return False
        self._keep(self.ahead, begin)
        return True

    def _keep(self, best: Step, begin: int) -> None:
        """Go on with the best of the steps from `begin` on; the others that pass are less than it."""
        for i, step in enumerate(self.steps[begin:], begin):
            if step is best:
                self.steps[i] = replace(step, kept=True)
                self.tell(self.steps[i])
            elif not step.why:
                self.steps[i] = replace(step, why="less than the best")
        assert best.recipe is not None
        assert best.judgement is not None
        self.best, self.now, self.ahead = best.recipe, best.judgement, None

    def _by_cost(self, found: Sequence[Lever]) -> list[Lever]:
        """The cheapest first; a longer step never before the shorter one."""
        costs: dict[str, float] = {}
        for lever in found:
            costs[lever.name] = max(self._cost(lever), costs.get(lever.after, 0.0))
        return sorted(found, key=lambda lever: costs[lever.name])

    def _cost(self, lever: Lever) -> float:
        """Seconds to judge it; infinity where that cannot be told, or not in the time that is left."""
        try:
            recipe = lever.applied(self.best)
            if recipe is None or self.memory.find(recipe) is not None:
                return 0.0
            with time_limit(self.seconds - self.memory.seconds):
                return self.costs.judging(recipe, self.plain.solving)
        except (TimeUp, UserError):
            return float("inf")

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

    def _step(self, lever: Lever) -> Step | None:
        """The lever on top of what has been kept; None where there is nothing to try."""
        made, late = partial(Step, lever.name, lever.kind), "no time"
        try:
            recipe = lever.applied(self.best)
            if recipe is None or recipe.digest in self.met:
                return None
            self.met.add(recipe.digest)
            if lever.after in self.idle:
                return made(recipe, why=f'skipped: "{lever.after}" gained nothing')
            check(choose(recipe))
            judgement = self.memory.find(recipe)
            if judgement is None:
                with time_limit(self.seconds - self.memory.seconds):
                    needed, left = self.costs.judging(recipe, self.plain.solving), self.left(recipe)
                if needed > left:
                    return made(recipe, why=f"no time: it takes {_minutes(needed)}")
                late = "no time: not finished"
                with time_limit(left):
                    judgement = self.images.judgement(recipe, self.work / recipe.digest[:8], self.now)
                self.memory.keep(recipe, judgement)
            return self._compared(made(recipe, judgement))
        except TimeUp:
            self.memory.save()
            return made(why=late)
        except UserError as error:
            return made(why=f"not possible: {error}")

    def _compared(self, step: Step) -> Step:
        """The step with its gains, and why it does not pass, if so."""
        assert step.judgement is not None
        rows = step.judgement.judged & self.now.judged
        judge = self.images.judge.only(rows)
        mine, before, plain = (j.correct[rows] for j in (step.judgement, self.now, self.plain))
        gain, total = (judge.gains(mine, other, STATISTICS) for other in (before, plain))
        lost = 100 * (judge.score(plain, "mean_per_class") - judge.score(mine, "mean_per_class"))
        why = ""
        if gain["hard"]["mean"] <= 0:
            why = "worse" if gain["hard"]["clear"] else "no gain"
        elif gain["hard"]["p"] >= LIKELY or total["hard"]["p"] >= CLEAR or total["hard"]["mean"] <= 0:
            why = "no clear gain"
        elif not judge.above_chance(mine):
            why = "no better than chance"
        elif round(lost - self.budget, EQUAL) > 0:
            why = f"over the budget ({lost:.1f})"
        return replace(step, accuracy=judge.scores(mine), gain=gain, over_plain=total, why=why)


def _minutes(seconds: float) -> str:
    """`40 s`, `12 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
