"""Held-out predictions of many exact probes: methods with their parameters x l2, on shared folds.

Every prediction is made by a head that has not seen the image. So heads start from others of the *same* fold
(neighbours in l2, and the method tried before at the same l2), never from another fold's, which has seen what
is judged here: at the tolerance that is enough to compare candidates, a start shines through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from probe import losses
from probe.evaluation.groups import class_mean, thirds
from probe.evaluation.judging import EQUAL, Judge, Objective
from probe.losses.spec import HELD_OUT_FREQUENCY
from probe.probing import robust
from probe.probing.crossfit import PLAIN, RAREST
from probe.probing.problem import ProbeProblem, Scores, take_rows
from probe.probing.select_l2 import ROUGH
from probe.probing.settings import LossChoice, LossSettings, SolverSettings
from probe.solve import l2_grid
from probe.solve.l2_grid import GRID
from probe.solve.logistic import LogisticSolver
from probe.solve.ridge import Ridge

Solver = TypeVar("Solver")

# Certified relative excess at which candidates are compared. On pets, at ROUGH 4 to 10 of 3,680 predictions
# are not the exact heads', as many as neighbouring parameters differ by; here 1 to 4, for half as much time
# again.
FINE = 1e-3
TRAINED, LEFT_OUT = -1, -2  # instead of a fold: images that every head learns from, and that none sees


@dataclass(frozen=True)
class Candidate:
    """A method with its parameters and an l2, and what its heads say about the m images that judge."""

    method: LossSettings
    l2: float
    predicted: NDArray[np.int64]  # m
    confidence: NDArray[np.float64]  # m: the probability of the true class


class CrossFit:
    """Candidates on one set of folds; each is solved once, however often it is asked for.

    `fold` is n: 0..F-1, TRAINED or LEFT_OUT. Class counts and statistics of a method are those of each fold's
    training images. Effective frequencies, and the groups of `judge`, come from `ranking`: the plain probe on
    other folds, by default on these.
    """

    @property
    def kind(self) -> type[_Fold]:
        """What solves for the heads of a fold."""
        return _LogisticFold

    def __init__(
        self, problem: ProbeProblem, fold: NDArray[np.int64], ranking: CrossFit | None = None
    ) -> None:
        self.problem, self.fold, self.ranking = problem, fold, ranking
        self.images = np.flatnonzero(fold >= 0)  # m: those that judge
        self.labels = problem.labels[self.images]
        self._folds = [self.kind(self, part) for part in np.unique(fold[self.images]).tolist()]
        self._known: dict[tuple[str, float, float], Candidate] = {}

    def copied(self) -> CrossFit:
        """The same, with what was solved for plain probes, for other methods to be solved."""
        made = copy(self)
        made._folds = [fold.copied(made) for fold in self._folds]
        made._known = dict(self._known)
        return made

    def candidate(self, method: LossSettings, l2: float, tol: float = FINE) -> Candidate:
        """Cross-fitted predictions with this method and l2, solved to `tol`."""
        name = repr((method.name, sorted(method.params.items())))
        key = (name, l2, tol)
        if key not in self._known:
            predicted = np.zeros(self.problem.images, dtype=np.int64)
            confidence = np.zeros(self.problem.images)
            for fold in self._folds:
                logits = self.problem.logits(fold.head(method, name, l2, tol), fold.held)
                own = F.softmax(logits.double(), dim=1).numpy()[
                    np.arange(len(fold.held)), self.problem.labels[fold.held]
                ]
                predicted[fold.held], confidence[fold.held] = logits.argmax(dim=1).numpy(), own
            self._known[key] = Candidate(method, l2, predicted[self.images], confidence[self.images])
        return self._known[key]

    def correct(self, candidate: Candidate) -> NDArray[np.bool_]:
        """m: which of its predictions are right."""
        right: NDArray[np.bool_] = candidate.predicted == self.labels
        return right

    @cached_property
    def reference(self) -> Candidate:
        """The plain probe, with the l2 that is best by the data set's metric."""
        trials = _Trials(self, PLAIN, self._unranked, Objective.of("auto", self.problem.metric), ROUGH)
        l2_grid.coarse_to_fine(trials)
        return self.candidate(PLAIN, GRID[trials.best()])

    @property
    def _unranked(self) -> Judge:
        """For what needs no groups: overall accuracy and the mean per class."""
        return Judge(self.labels, self.fold[self.images], self.problem.num_classes, ())

    @cached_property
    def judge(self) -> Judge:
        """The images that judge, with groups that other images rank."""
        fold, k = self.fold[self.images], self.problem.num_classes
        if self.ranking is None:
            return Judge.ranked(self.labels, k, fold, *self.reference_values)
        if np.array_equal(self.ranking.fold, self.fold):
            return Judge.ranked(self.labels, k, fold, *self.ranking.reference_values)
        groups = thirds(*(class_mean(v, self.ranking.labels, k) for v in self.ranking.reference_values))
        return Judge(self.labels, fold, k, (groups,) * (int(fold.max()) + 1))

    @property
    def reference_values(self) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """m each: is the reference right, and its probability of the true class."""
        return self.correct(self.reference), self.reference.confidence

    def frequency(self, part: int | None = None) -> list[float]:
        """K effective frequencies: by the reference, on all images or, for a fold, on those outside it."""
        ranking = self.ranking or self
        shared = self.ranking is None and part is not None
        others = ranking.fold[ranking.images] != part if shared else slice(None)
        own = class_mean(
            ranking.reference.confidence[others], ranking.labels[others], self.problem.num_classes
        )
        return np.maximum(own, RAREST).tolist()

    def filled(self, method: LossSettings, part: int | None = None) -> LossSettings:
        """The same method with its `frequency` filled in, where it has one that is not given."""
        spec = losses.info(method.name)
        wanted = spec.unfilled(HELD_OUT_FREQUENCY, spec.resolve(method.params))
        if wanted is None:
            return method
        return LossChoice(method.name, {**method.params, wanted: self.frequency(part)})


class RidgeCrossFit(CrossFit):
    """Ridge regression instead: it knows no method, so only its l2 is searched."""

    @property
    def kind(self) -> type[_Fold]:
        return _RidgeFold


class _Fold(ABC):
    """One fold: images that are held out, and heads for them."""

    def __init__(self, crossfit: CrossFit, part: int) -> None:
        self.crossfit, self.part = crossfit, part
        self.held = np.flatnonzero(crossfit.fold == part)
        kept = np.flatnonzero((crossfit.fold != part) & (crossfit.fold != LEFT_OUT))
        self.rows = crossfit.problem.rows(kept)

    def copied(self, crossfit: CrossFit) -> Self:
        """The same fold of another cross-fit of the same images."""
        made = copy(self)
        made.crossfit = crossfit
        return made

    def data(self, solver: Callable[..., Solver], **settings: Any) -> Solver:
        """A solver of this fold's training rows."""
        problem, rows = self.crossfit.problem, self.rows
        X, y = take_rows(problem.X, rows), problem.y[rows]
        return solver(X, y, problem.num_classes, sample_weight=problem.weights(rows), **settings)

    @abstractmethod
    def head(self, method: LossSettings, key: str, l2: float, tol: float) -> Scores:
        """The head of a candidate; `key` names the method."""


class _LogisticFold(_Fold):
    """Each head starts from those before it; the plain probe's from its own alone.

    So plain candidates, to the bit, do not depend on which methods are compared with them.
    """

    _method = ""  # the key of the method that `_loss` and `_latest` are about
    _latest: LogisticSolver

    def copied(self, crossfit: CrossFit) -> Self:
        made = super().copied(crossfit)
        if "_solver" in made.__dict__:
            made.__dict__["_solver"] = copy(self._solver)
        return made

    @cached_property
    def _solver(self) -> LogisticSolver:
        return self.data(LogisticSolver, basis=self.crossfit.problem.basis)

    def head(self, method: LossSettings, key: str, l2: float, tol: float) -> Scores:
        if method.name == PLAIN.name:
            return self._solver.path([l2], tol=tol, judged=False)[0]
        if key != self._method:
            before = self._latest if self._method else self._solver
            filled = self.crossfit.filled(method, self.part)
            self._loss = self.crossfit.problem.loss(filled, self.rows)
            self._latest = before.adjusted(self._loss.adjustment())
            self._method = key
        if self._loss.worst_class() is not None:  # its class weights depend on l2
            robust.settle_on(self._latest, self._loss, l2=l2, tol=tol, judged=False)
            self._latest = self._latest.adjusted(self._loss.adjustment())
        return self._latest.path([l2], tol=tol, judged=False)[0]


class _RidgeFold(_Fold):
    @cached_property
    def _solver(self) -> Ridge:
        return self.data(Ridge, device=self.crossfit.problem.device)

    def head(self, method: LossSettings, key: str, l2: float, tol: float) -> Scores:
        return self._solver.path([l2])[0]


class _Trials:
    """The l2 of one method, as `l2_grid` searches it for a goal."""

    def __init__(
        self, crossfit: CrossFit, method: LossSettings, judge: Judge, goal: Objective, tol: float = FINE
    ) -> None:
        self.crossfit, self.method, self.judge, self.goal, self.tol = crossfit, method, judge, goal, tol
        self.tried: dict[int, dict[str, float]] = {}

    def fit(self, positions: Sequence[int]) -> None:
        for i in sorted(positions, reverse=True):  # weaker ones start from stronger ones' solutions
            candidate = self.crossfit.candidate(self.method, GRID[i], self.tol)
            self.tried[i] = self.judge.scores(self.crossfit.correct(candidate))

    def best(self) -> int:
        places = list(self.tried)
        return places[self.goal.best([self.tried[i] for i in places], [GRID[i] for i in places])]

    def worse(self, position: int) -> bool:
        aim = self.goal.statistics[-1]
        return round(self.tried[position][aim] - self.tried[self.best()][aim], EQUAL) < 0


@dataclass(frozen=True)
class CrossFitted:
    """Every candidate that was tried, in the order of the methods, and which of them is chosen."""

    candidates: list[Candidate]
    scores: list[dict[str, float]]  # of each, by statistic
    best: int

    @property
    def chosen(self) -> Candidate:
        """The best candidate."""
        return self.candidates[self.best]


def crossfit_candidates(
    crossfit: CrossFit, methods: Sequence[LossSettings], solver: SolverSettings, objective: Objective
) -> CrossFitted:
    """Search methods x l2 for the objective: the solver's l2, all of its grid, or uphill from a good start.

    That is the plain probe's l2 for the first method, and for every other that of the method before it.

    >>> crossfit = CrossFit(problem, groups.folds(problem.labels, 5, seed=0))
    >>> powers = [LossChoice("la", {"tau": tau}) for tau in (0.5, 1)]
    >>> crossfit_candidates(crossfit, powers, solver, Objective("hard")).chosen
    """
    judge = crossfit.judge
    judge.check(objective)
    tried: list[Candidate] = []
    start = GRID.index(crossfit.reference.l2)
    for method in methods:
        if solver.l2 is not None:
            tried.append(crossfit.candidate(method, solver.l2))
            continue
        trials = _Trials(crossfit, method, judge, objective)
        if solver.grid == "full":
            trials.fit(range(len(GRID)))
        else:
            start = _climb(trials, start)
        tried += [crossfit.candidate(method, GRID[i]) for i in sorted(trials.tried)]
    scores = [judge.scores(crossfit.correct(candidate)) for candidate in tried]
    return CrossFitted(tried, scores, objective.best(scores, [candidate.l2 for candidate in tried]))


def _climb(trials: _Trials, start: int) -> int:
    """Search from a position for each of the objective's goals; returns where the next method may start."""
    for goal in trials.goal.goals:
        trials.goal = goal
        l2_grid.around(trials, start)
        start = trials.best()
    return start
