"""What "vs erm" means: the exact probe of the frozen backbone, or erm trained with the same settings.

A trained erm is a run like any other, in the same output folder: with checkpoints of its own, and reused
while it is fresh. So the next method of the same settings, and `probe compare`, find it there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import UserError
from probe.evaluation.predictions import Predictions
from probe.recipe import Recipe
from probe.runs import staleness
from probe.runs.folder import RunFolder
from probe.runs.naming import label
from probe.system.safe_text import one_line
from probe.system.world import rank as rank_of_process

ERM = "erm"
PROBE, SAME = "frozen probe", "same training"  # as tables and result.json say it


@dataclass(frozen=True)
class TrainedRun:
    """A finished training that another run needs: its name, its result, its predictions."""

    name: str
    result: dict[str, Any]
    predictions: Sequence[Predictions]  # one per seed

    def predictions_as(self, method: str) -> list[Predictions]:
        """Its predictions under another method's name."""
        return [p.called(method) for p in self.predictions]


def how(recipe: Recipe) -> str | None:
    """PROBE or SAME; None for a run that is itself the erm which others are compared with.

    A network from scratch has no frozen features worth probing, so it is always compared with a training.
    """
    if recipe.trains and (recipe.versus == "same" or recipe.from_scratch):
        return None if recipe.method.name == ERM else SAME
    return None if label(recipe) == ERM else PROBE


def check(recipe: Recipe) -> None:
    """Refuse a comparison that would mean nothing."""
    if recipe.versus == "probe" and recipe.from_scratch:
        raise UserError(
            f"versus: probe would probe {recipe.backbone.name} before it has learnt anything; use versus=same"
        )


def remark(recipe: Recipe, trained: TrainedRun | None) -> str | None:
    """What a reader must know about the erm in a training's table."""
    if trained is not None:
        return f"erm, which it is compared with, was trained with the same settings: {trained.name}"
    if how(recipe) is None and recipe.trains:
        return "this is the training that others are compared with; it is compared with nothing"
    if recipe.finetune:
        return "erm, which it is compared with, is the exact probe of the frozen backbone, not a training"
    return None


def ranking_recipe(recipe: Recipe) -> Recipe:
    """The erm training that ranks the classes of a network from scratch: one seed, with a holdout.

    Frozen features cannot rank them, and a training that learns from every row (`keep: last`) leaves none to
    rank by. A holdout would change the compared trainings, hence this one beside them.
    """
    plain = recipe.plain
    best = plain.train.model_copy(update={"keep": "best"})
    return plain if plain.train.selects else plain.model_copy(update={"seeds": 1, "train": best})


def fetch(recipe: Recipe, why: str, *, ids: Sequence[str], cache: Path | None, out: Path) -> TrainedRun:
    """The run of this recipe in `out`: an existing one, or a new one. `ids` are the test images."""
    folder = RunFolder.of(recipe, out)
    found = staleness.current(recipe, folder, staleness.Present(cache))
    if found is not None:
        return TrainedRun(folder.name, found, folder.predictions(ids))
    from probe.runs.run import run

    if rank_of_process() == 0:
        print(one_line(f"{label(recipe)} is trained too, {why}: {folder.path}"), file=sys.stderr)
    finished = run(recipe, cache=cache, out=out)
    return TrainedRun(folder.name, finished.result, finished.predictions)
