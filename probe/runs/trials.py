"""Values of a range that must be trained to be compared: each without the holdout, then judged on it.

A finished trial leaves its scores in its folder and nothing else, so that a run which was killed goes on
where it stopped; an unfinished one resumes from its own checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from backbones import reading
from probe.evaluation.judging import Judge
from probe.probing.selection import Selector
from probe.recipe import MethodConfig, Recipe
from probe.runs import selecting
from probe.system import sealed_json
from probe.system.atomic import write_atomic
from probe.system.world import rank as rank_of_process

SCORES = "scores.json"
BY = "trainings without the holdout"


@dataclass(frozen=True)
class Trials:
    """The trainings of a recipe's range with one seed, below `folder`."""

    recipe: Recipe
    selector: Selector
    folder: Path
    # the training of a recipe in a folder -> m x K scores of the holdout, which it has not seen
    train: Callable[[Recipe, Path], Tensor]

    def choose(self) -> tuple[MethodConfig, dict[str, Any]]:
        """The method to train as the recipe says, and what to record about the choice."""
        points = selecting.points(self.recipe)
        judge, objective = self._judge(), self.selector.objective
        judge.check(objective)
        scores = [self._scores(point, number, judge) for number, point in enumerate(points)]
        best = points[objective.best(scores, [0.0] * len(points))]
        tried = [{"parameters": p.params, **s} for p, s in zip(points, scores, strict=True)]
        about = self.selector.described(BY)
        return best, {"select": {**about, "parameters": best.params, "tried": tried}}

    def _judge(self) -> Judge:
        """Nothing ranks the classes of a network from scratch; `selecting.check` refused what needs it."""
        return self.selector.unranked_judge if self.recipe.from_scratch else self.selector.holdout_judge

    def _scores(self, point: MethodConfig, number: int, judge: Judge) -> dict[str, float]:
        keep = self.recipe.train.model_copy(update={"keep": "best"})
        recipe = selecting.with_method(self.recipe, point).model_copy(update={"train": keep})
        folder = self.folder / f"trial-{number}"
        key = sealed_json.digest(f"{recipe.digest} {self.selector.problem.key} {self.selector.seed}")
        known = _finished(folder / SCORES, key)
        if known is not None:
            return known
        predicted = self.train(recipe, folder).argmax(dim=1).numpy()
        scores = judge.scores(predicted == judge.labels)
        if rank_of_process() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # weights and checkpoints of each value would add up
            write_atomic(folder / SCORES, sealed_json.sealed({"key": key, "scores": scores}).encode())
        return scores


def _finished(path: Path, key: str) -> dict[str, float] | None:
    """The scores of an earlier run of this trial; None where there are none, or of something else."""
    try:
        body = sealed_json.unsealed(reading.text(path, reading.LOG))
    except (OSError, ValueError, KeyError):
        return None
    return dict(body["scores"]) if body.get("key") == key else None
