"""The penalty of a linear head under a loss without an exact form: whole trainings, uphill from plain's.

The best penalty of plain cross-entropy is where the search begins, and no more: focal loss and its relatives
have other gradients for the same logits. Each trial is the training itself without the held-out images, which
then judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.judging import Judge, Objective
from probe.heads.fitted import FittedHead, OnScaled
from probe.probing.problem import ProbeProblem
from probe.probing.selection import Selector
from probe.train.step import Diverged

STEP = 10.0  # between neighbours
MOST = 6  # trainings

# the problem without the held-out images, l2 -> a head trained on it
Train = Callable[[ProbeProblem, float], FittedHead]
BY = "trainings without the holdout"


@dataclass(frozen=True)
class L2Search:
    """What trials are trained on and judged by."""

    problem: ProbeProblem
    held: NDArray[np.int64]  # images
    selector: Selector | None = None  # says what is chosen for; None: the data set's metric

    def __call__(self, train: Train, start: float, params: Mapping[str, Any]) -> dict[str, Any]:
        """The record of the best l2, with all that were tried; `start` is the first one."""
        kept = self.problem.only(np.setdiff1d(np.arange(self.problem.images), self.held))
        judge, objective = self._judge, self._objective
        judge.check(objective)
        tried: dict[int, dict[str, float]] = {}  # by the number of steps from the start

        def best() -> int:
            places = list(tried)
            return places[objective.best([tried[p] for p in places], [l2(p) for p in places])]

        def l2(place: int) -> float:
            return start * STEP**place

        places = [0]
        while places and len(tried) < MOST:
            tried[places[0]] = self._scores(judge, kept, train, l2(places[0]))
            # of equal ones the stronger penalty, so that is asked first
            places = [place for place in (best() + 1, best() - 1) if place not in tried]
        rows = [(l2(place), tried[place]) for place in sorted(tried)]
        return {"l2": l2(best()), **self._record(rows, params)}

    @property
    def _judge(self) -> Judge:
        if self.selector is not None:
            return self.selector.holdout_judge
        labels = self.problem.labels[self.held]
        return Judge(labels, np.zeros_like(labels), self.problem.num_classes, ())

    @property
    def _objective(self) -> Objective:
        return Objective.of("auto", self.problem.metric) if self.selector is None else self.selector.objective

    def _scores(self, judge: Judge, kept: ProbeProblem, train: Train, l2: float) -> dict[str, float]:
        """The statistics of the held-out images; a training that diverged got none of them right."""
        try:
            scores = self.problem.logits(OnScaled(train(kept, l2)), self.held)
        except Diverged:
            return judge.scores(np.zeros(len(self.held), dtype=bool))
        return judge.scores(scores.argmax(dim=1).numpy() == judge.labels)

    def _record(
        self, rows: list[tuple[float, dict[str, float]]], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        if self.selector is None:
            return {"validation": [[l2, scores[self._objective.statistics[-1]]] for l2, scores in rows]}
        tried = [{"parameters": dict(params), "l2": l2, **scores} for l2, scores in rows]
        return {"select": {**self.selector.described(BY), "parameters": dict(params), "tried": tried}}
