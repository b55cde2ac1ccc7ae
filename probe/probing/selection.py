"""The choice of l2 and of a method's parameters for an objective, by images that the heads have not seen.

Which images judge: the holdout where it has enough images of a class to tell candidates apart; else all
training images, by five-fold cross-fitting. Hard classes are ranked by the plain probe on other images than
those that judge (`probe.evaluation.judging`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation.groups import folds
from probe.evaluation.judging import BUDGET, Judge, Objective
from probe.probing.candidates import (
    LEFT_OUT,
    TRAINED,
    CrossFit,
    CrossFitted,
    RidgeCrossFit,
    crossfit_candidates,
)
from probe.probing.problem import ProbeProblem
from probe.probing.settings import LossSettings, SolverSettings

FOLDS = 5
# Images of the median class from which on a holdout judges. With 25, a class's accuracy of 80 % has a
# standard error of 8 points, and that of 12 hard classes one of 2.3; with fewer, candidates look alike.
ENOUGH = 25
CROSSFIT, HOLDOUT = "cross-fitting", "the holdout"


def enough(labels: NDArray[np.int64]) -> bool:
    """Has a holdout with these labels enough images of its median class to judge?"""
    n = np.bincount(labels) if len(labels) else np.zeros(1)
    return bool(np.median(n[n > 0]) >= ENOUGH) if n.any() else False


@dataclass(frozen=True)
class Choice:
    """A method without anything left to choose, its l2, and what result.json says about it."""

    method: LossSettings
    l2: float
    record: dict[str, Any]


@dataclass(frozen=True)
class Selector:
    """Everything that is chosen with one seed: the recipe's method and the plain probe share its folds."""

    problem: ProbeProblem
    holdout: NDArray[np.int64]  # images
    objective: Objective
    seed: int = 0

    def copied(self) -> Selector:
        """The same, with everything that was solved for it, for others to solve more of."""
        made = copy(self)
        if "_crossfit" in made.__dict__:
            made.__dict__["_crossfit"] = made._crossfit.copied()
        return made

    @property
    def by(self) -> str:
        """Which images judge."""
        return HOLDOUT if enough(self.problem.labels[self.holdout]) else CROSSFIT

    @cached_property
    def _crossfit(self) -> CrossFit:
        if self.by == HOLDOUT:
            return CrossFit(self.problem, self._only_holdout, self._without_holdout)
        return CrossFit(self.problem, folds(self.problem.labels, FOLDS, self.seed))

    @cached_property
    def _ridge(self) -> CrossFit:
        plain = self._crossfit
        return RidgeCrossFit(self.problem, plain.fold, plain.ranking or plain)

    @property
    def _only_holdout(self) -> NDArray[np.int64]:
        fold = np.full(self.problem.images, TRAINED)
        fold[self.holdout] = 0
        return fold

    @cached_property
    def _without_holdout(self) -> CrossFit:
        """Ranks the classes where the holdout judges; the seed is fixed, so that the groups are."""
        others = np.setdiff1d(np.arange(self.problem.images), self.holdout)
        fold = np.full(self.problem.images, LEFT_OUT)
        fold[others] = folds(self.problem.labels[others], FOLDS, 0)
        return CrossFit(self.problem, fold)

    @cached_property
    def holdout_judge(self) -> Judge:
        """For heads that were trained without the holdout, by whatever means."""
        if len(self.holdout) == 0:
            raise UserError("no image is left to choose by: give one value of each parameter")
        return CrossFit(self.problem, self._only_holdout, self._without_holdout).judge

    @property
    def unranked_judge(self) -> Judge:
        """The same without groups, where frozen features rank nothing."""
        labels = self.problem.labels[self.holdout]
        return Judge(labels, np.zeros_like(labels), self.problem.num_classes, ())

    def choose(self, methods: Sequence[LossSettings], solver: SolverSettings) -> Choice:
        """The best of these methods and of l2, where the solver does not give it."""
        crossfit = self._ridge if solver.name == "ridge" else self._crossfit
        found = crossfit_candidates(crossfit, methods, solver, self.objective)
        chosen = found.chosen
        return Choice(crossfit.filled(chosen.method), chosen.l2, self._record(found))

    def _record(self, found: CrossFitted) -> dict[str, Any]:
        chosen = found.chosen
        tried = [
            {"parameters": dict(candidate.method.params), "l2": candidate.l2, **scores}
            for candidate, scores in zip(found.candidates, found.scores, strict=True)
        ]
        return {
            "l2": chosen.l2,
            "select": {**self.described(self.by), "parameters": dict(chosen.method.params), "tried": tried},
        }

    def described(self, by: str) -> dict[str, Any]:
        """What is chosen for, and by which images."""
        budget = {"budget": self.objective.budget} if self.objective.name == BUDGET else {}
        return {"objective": self.objective.name, **budget, "by": by}
