"""Easy, Medium and Hard of a run: by a model that is not the one under test, and not by the test images.

Where the backbone is pretrained, that is an erm probe, cross-fitted on the frozen features of the training
split. A net from scratch has no features worth ranking by before its training, and afterwards it knows every
row that it learnt from; so its classes are ranked by an erm training and rows held out from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from probe.evaluation import groups, metrics, predictions
from probe.evaluation.groups import Ranking
from probe.evaluation.predictions import Predictions
from probe.probing import exact as probing
from probe.probing.exact import ProbeProblem
from probe.recipe import Recipe
from probe.runs import reference
from probe.runs.inputs import RunInputs, from_scratch
from probe.runs.reference import ERM, Trained

if TYPE_CHECKING:
    from probe.runs.run import SeedResults

Fetch = Callable[[Recipe, str], Trained]
HELD_OUT = "held-out"  # groups_by of a net from scratch


@dataclass(frozen=True)
class Ranker:
    """All that may rank the classes of a run."""

    recipe: Recipe
    problem: ProbeProblem
    material: RunInputs
    cuts: Sequence[NDArray[np.int64]]  # held-out rows, seed by seed
    learnt: Sequence[SeedResults]  # the run's own method first
    guesses: Sequence[Predictions]
    rival: Trained | None  # the erm training that it is compared with

    def __call__(self, fetch: Fetch) -> Ranking:
        """The groups as the recipe asks for them; `fetch` gets a training that is needed for that alone."""
        source = self.recipe.groups
        if source == "crossfit" and from_scratch(self.recipe):
            return self._held_out(fetch)
        made = self.material.groups or (self._paper() if source == "paper" else self._crossfit())
        where = groups.origin(source)
        return Ranking(made, str(where["groups_by"]), where["groups_from"], groups.remark(source))

    def _paper(self) -> dict[str, list[int]]:
        """By erm's test accuracy; a training that is itself erm ranks by its own."""
        test = self.material.features["test"]
        plain = ERM if any(g.method == ERM for g in self.guesses) else self.recipe.label
        correct = predictions.outcome(self.guesses, test.y, plain).correct
        return groups.thirds(np.nan_to_num(metrics.count(correct, test.y, self.problem.num_classes).accuracy))

    def _crossfit(self) -> dict[str, list[int]]:
        problem, last = self.problem, self.learnt[-1]
        if last.name == ERM:
            fit = last.fits[0]
        else:  # compared with a training; classes are ranked by the frozen features all the same
            exact = probing.exactly(self.recipe.solver)
            fit = probing.fit(problem, probing.PLAIN, exact, self.cuts[0])
        held_out = probing.held_out_probabilities(problem, fit.record["l2"])
        return groups.thirds(*groups.crossfit(problem.y, problem.num_classes, held_out))

    def _held_out(self, fetch: Fetch) -> Ranking:
        """The reference's groups where there is one; else this run is erm, and ranks by its own held-out
        rows, or takes the groups of a training that holds some out (`reference.ranker`)."""
        ranker = reference.ranker(self.recipe)
        if self.recipe.digest == ranker.digest:
            return self._by_own_rows()
        other = self.rival or fetch(ranker, "to rank the classes by images held out from it")
        by, source = other.result["groups_by"], other.result["groups_from"] or other.name
        found = groups.of_result(other.result, self.problem.class_names)
        return Ranking(found, by, source, _remark(by))

    def _by_own_rows(self) -> Ranking:
        scores = [s for s in self.learnt[0].held if s is not None]
        probability = F.softmax(torch.cat(scores).double(), dim=1).numpy()
        problem, rows = self.problem, np.concatenate(self.cuts)
        found = groups.held_out(problem.y[rows], probability, problem.num_classes)
        if found is None:
            return Ranking({"all": list(range(problem.num_classes))}, "none", remark=_remark("none"))
        return Ranking(found, HELD_OUT, remark=_remark(HELD_OUT))


def _remark(by: str) -> str:
    if by == HELD_OUT:
        return "groups are ranked by erm, trained from scratch, and training images held out from it"
    return "nothing ranks the classes: some have no training image to hold out; name groups with --groups"
