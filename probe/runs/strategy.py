"""The three ways to a head: solved exactly, trained by SGD on features, or fine-tuned with the backbone.

A run chooses one of them, once, with `choose`. Each checks the recipe, fits the method with every seed, and
says what its log holds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe import methods
from probe.errors import UserError
from probe.evaluation import predictions
from probe.evaluation.predictions import Predictions
from probe.methods.second_stage_rows import NOT_TRAINED
from probe.probing import exact, second_stage
from probe.probing.problem import Fit, ProbeProblem
from probe.probing.selection import Selector, enough
from probe.probing.settings import LossSettings, SolverSettings
from probe.recipe import MethodConfig, Recipe
from probe.recipe.errors import check_all
from probe.runs import first_stage, selecting
from probe.runs.folder import RunFolder
from probe.runs.inputs import RunInputs
from probe.runs.naming import label

if TYPE_CHECKING:
    from probe.train import FinetunedModel

Holdouts = Sequence[NDArray[np.int64]]  # the images that validate, one array per seed


@dataclass(frozen=True)
class FittedMethod:
    """One method's heads, one per seed, and their scores on the test split."""

    name: str  # what its predictions are called
    fits: list[Fit]
    scores: list[Tensor]  # N x K each
    tuned: Sequence[FinetunedModel] = ()  # each seed's backbone, where it was trained too
    # N x K scores of each seed's holdout; None where it was trained on
    holdout_scores: Sequence[Tensor | None] = ()
    start_scores: Sequence[Tensor] = ()  # N x K scores at step 0, of fine-tunings that start from a probe
    first_scores: Sequence[Tensor] = ()  # N x K scores of the head that a second stage started from

    def predictions(self, labels: NDArray[np.int64]) -> list[Predictions]:
        """One per seed; `labels` are those of the test split."""
        return [predictions.from_scores(s, labels, self.name, seed) for seed, s in enumerate(self.scores)]


@dataclass(frozen=True)
class Strategy(ABC):
    """One way to fit a recipe's method."""

    recipe: Recipe

    @abstractmethod
    def check(self) -> None:
        """Refuse at once what could only fail after minutes of extraction."""

    @abstractmethod
    def seeds(self, inputs: RunInputs) -> int:
        """How many seeds give different heads."""

    @abstractmethod
    def fit(
        self,
        problem: ProbeProblem,
        inputs: RunInputs,
        holdouts: Holdouts,
        work: Path,
        selectors: Sequence[Selector] = (),
        first: int = 0,
    ) -> FittedMethod:
        """The recipe's method with one seed per holdout, the run's seed `first` and those after it.

        `work` is for checkpoints; `selectors` are those of `probe.runs.selecting`.
        """

    @abstractmethod
    def write_log(self, fitted: FittedMethod, work: Path, folder: RunFolder) -> None:
        """How the fits went, and what else they left in `work`."""


class Exact(Strategy):
    """A solver with a certified solution; a seed acts through the holdout that l2 is chosen on."""

    def check(self) -> None:
        method, points = methods.info(self.recipe.method.name), selecting.points(self.recipe)
        if first_stage.is_exact(self.recipe.method):
            check_all(partial(self._check_stage, point) for point in points)
            return
        if methods.catalogue.wraps(method.name) and method.frozen == "no effect":
            raise UserError(
                f"{method.name} has no effect on frozen features: {method.why}; "
                "fine-tune, or use --solver sgd train.head=adapter"
            )
        if methods.catalogue.wraps(method.name):
            raise UserError(f"{method.name} must be trained: use --solver sgd, or --finetune")
        check_all(partial(exact.check, point, self.recipe.solver) for point in points)

    def _check_stage(self, point: MethodConfig) -> None:
        first_stage.check_method(point)
        first = first_stage.of(self.recipe)
        if first is not None:
            first.check(self.recipe)
        second_stage.check(first_stage.settings(point, first), self.recipe.solver)

    def seeds(self, inputs: RunInputs) -> int:
        solver = self.recipe.solver
        if inputs.first is not None:
            return 1  # its first seed is stored, and the images that were held out from it
        validates = solver.name in ("lbfgs", "ridge") and (solver.l2 is None or selecting.acts(self.recipe))
        if first_stage.is_exact(self.recipe.method):
            stage = first_stage.settings(selecting.points(self.recipe)[0])
            validates = validates or second_stage.STAGES[stage.name].chooses(stage.params)
        official = "val" in inputs.features
        if official and selecting.acts(self.recipe):  # folds, which a seed deals out, where it has few images
            official = enough(inputs.features["val"].y)
        return self.recipe.seeds if validates and not official else 1

    def fit(
        self,
        problem: ProbeProblem,
        inputs: RunInputs,
        holdouts: Holdouts,
        work: Path,
        selectors: Sequence[Selector] = (),
        first: int = 0,
    ) -> FittedMethod:
        points, solver = selecting.points(self.recipe), self.recipe.solver
        if not first_stage.is_exact(self.recipe.method):
            return scored(label(self.recipe), solve(problem, holdouts, points, solver, selectors), inputs)
        stages = [first_stage.settings(point, inputs.first) for point in points]
        if selectors:
            fits = [second_stage.fit_selected(problem, stages, solver, selector) for selector in selectors]
        else:
            fits = [second_stage.fit(problem, stages[0], solver, holdout) for holdout in holdouts]
        test, firsts = inputs.test_views, [fit.first for fit in fits if fit.first is not None]
        return FittedMethod(
            label(self.recipe),
            fits,
            scores=[fit.head.scores_over(test) for fit in fits],
            first_scores=[first.scores_over(test) for first in firsts],
        )

    def write_log(self, fitted: FittedMethod, work: Path, folder: RunFolder) -> None:
        rows = ({"seed": seed, **fit.record} for seed, fit in enumerate(fitted.fits))
        folder.write_log("".join(json.dumps(row) + "\n" for row in rows))


def solve(
    problem: ProbeProblem,
    holdouts: Holdouts,
    methods: Sequence[LossSettings],
    solver: SolverSettings,
    selectors: Sequence[Selector] = (),
) -> list[Fit]:
    """A method by an exact solver, with every holdout.

    With `selectors`, one per holdout, these choose l2 and among several methods.
    """
    if selectors and (len(methods) > 1 or solver.l2 is None):
        return [exact.fit_selected(problem, methods, solver, selector) for selector in selectors]
    return [exact.fit(problem, methods[0], solver, holdout) for holdout in holdouts]


def scored(name: str, fits: list[Fit], inputs: RunInputs) -> FittedMethod:
    """These heads with their scores on the test split, which is not looked at before everything is chosen."""
    return FittedMethod(name, fits, [fit.head.scores_over(inputs.test_views) for fit in fits])


class Trained(Strategy):
    """By gradient steps: every seed has an initialisation and a log of its own."""

    def check(self) -> None:
        from probe.train import frequency
        from probe.train.build import check_recipe

        check_trained(self.recipe.method)
        selecting.check(self.recipe)
        frequency.check(self.recipe)
        check_all(partial(check_recipe, recipe) for recipe in selecting.recipes(self.recipe))

    def seeds(self, inputs: RunInputs) -> int:
        return self.recipe.seeds

    def write_log(self, fitted: FittedMethod, work: Path, folder: RunFolder) -> None:
        from probe.runs import seeds

        chosen = [
            {"seed": seed, "select": fit.record["select"]}
            for seed, fit in enumerate(fitted.fits)
            if "select" in fit.record
        ]
        said = "".join(json.dumps(row) + "\n" for row in chosen)
        folder.write_log(said + seeds.log(work, len(fitted.fits)))
        seeds.copy_tracking(work, len(fitted.fits), folder)


def check_trained(method: MethodConfig) -> None:
    """Refuse to train what only an exact solver can do."""
    if methods.catalogue.is_second_stage(method.name):
        raise UserError(f"{method.name}: {NOT_TRAINED}")
    if method.name == "jtt" and method.params.get("errors", "training") != "training":
        raise UserError("jtt: errors=crossfit is for the exact solver; a training counts its own errors")


class Sgd(Trained):
    """A head trained by SGD on cached features."""

    def fit(
        self,
        problem: ProbeProblem,
        inputs: RunInputs,
        holdouts: Holdouts,
        work: Path,
        selectors: Sequence[Selector] = (),
        first: int = 0,
    ) -> FittedMethod:
        from probe.runs import seeds

        fits = list(seeds.probes(self.recipe, problem, holdouts, work, selectors, first))
        return scored(label(self.recipe), fits, inputs)


class Finetune(Trained):
    """Head and backbone trained on images."""

    def fit(
        self,
        problem: ProbeProblem,
        inputs: RunInputs,
        holdouts: Holdouts,
        work: Path,
        selectors: Sequence[Selector] = (),
        first: int = 0,
    ) -> FittedMethod:
        from probe.runs import seeds

        tuned = list(seeds.tunings(self.recipe, problem, inputs, holdouts, work, selectors, first))
        test = inputs.features["test"].X
        return FittedMethod(
            label(self.recipe),
            fits=[Fit(t.head, t.record, t.loss) for t in tuned],
            scores=[t.scores for t in tuned],
            tuned=tuned,
            holdout_scores=[t.held for t in tuned],
            start_scores=[t.start.scores(test) for t in tuned if t.start is not None],
        )


def choose(recipe: Recipe) -> Strategy:
    """The strategy of this recipe."""
    if recipe.finetune:
        return Finetune(recipe)
    return Sgd(recipe) if recipe.solver.name == "sgd" else Exact(recipe)
