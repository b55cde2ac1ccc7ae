"""What second stages share: settings, and how one chooses and is fitted; see `probe.probing.second_stage`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.heads.fitted import FittedHead
from probe.losses.base import Loss
from probe.probing import exact
from probe.probing.problem import Fit, ProbeProblem
from probe.probing.select_l2 import LogisticPath, select_l2
from probe.probing.settings import LossChoice, LossSettings, SolverSettings
from probe.solve.solution import LinearSolution

Images = NDArray[np.int64]


@dataclass(frozen=True)
class FirstHead:
    """A head that a run left, for features that the problem's scaling has been applied to."""

    run: str  # its name, for messages
    head: FittedHead
    saw_holdout: bool  # has it learnt from the images that would choose here?


@dataclass(frozen=True)
class StageSettings:
    """A second stage by its name in STAGES, its own parameters, and what comes before it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    loss: LossSettings = field(default_factory=LossChoice)
    first: FirstHead | None = None  # None: the exact solution of the loss


class SecondStage(ABC):
    """One second stage on one problem; `choose` is called before anything is made."""

    choice = "l2"  # what it may choose on the holdout, in messages
    way_out = ""  # what a user can do so that nothing is chosen

    def __init__(
        self, problem: ProbeProblem, settings: StageSettings, solver: SolverSettings, holdout: Images
    ) -> None:
        self.problem, self.settings, self.solver, self.holdout = problem, settings, solver, holdout
        self.everything = np.arange(problem.images)
        self.record: dict[str, Any] = {}
        self.loss: Loss | None = None

    @classmethod
    def chooses(cls, params: Mapping[str, Any]) -> bool:
        """Is something chosen that a head which has seen the holdout could not choose honestly?"""
        return False

    @property
    def kept(self) -> Images:
        """All images but the holdout."""
        return np.setdiff1d(self.everything, self.holdout)

    @abstractmethod
    def choose(self) -> None:
        """Choose what is open, by the holdout, and record it."""

    @abstractmethod
    def head(self, images: Images) -> FittedHead:
        """The head of these images, with what was chosen."""

    def fit(self) -> Fit:
        """The head of all images."""
        first = None if self.settings.first is None else self.settings.first.head
        return Fit(self.head(self.everything), self.record, self.loss, first, self.remarks())

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers must know."""
        return ()

    @cached_property
    def inner(self) -> LossSettings:
        """The loss, with effective frequencies filled in where it has some."""
        return exact.with_frequency(self.problem, self.settings.loss, self.solver, self.holdout)

    def l2_of(self, problem: ProbeProblem) -> dict[str, Any]:
        """The given l2, or the best on the holdout for the loss on these (weighted) images."""
        path = LogisticPath(problem, lambda rows: problem.loss(self.inner, rows))
        return select_l2(problem, self.solver, self.holdout, path)

    def solved(
        self, problem: ProbeProblem, images: Images, l2: float, tol: float | None = None
    ) -> LinearSolution:
        """The loss's solution of these images."""
        rows = None if len(images) == problem.images else problem.rows(images)
        solution, self.loss = exact.solved(
            problem, self.inner, l2=l2, tol=self.solver.tol if tol is None else tol, rows=rows
        )
        return solution

    def balanced(self, images: Images) -> NDArray[np.float64]:
        """n weights with which the classes of these images count alike, their sum as without: in expectation
        what class-balanced sampling does."""
        counts = np.bincount(self.problem.labels[images], minlength=self.problem.num_classes)
        share = len(images) / (np.maximum(counts, 1) * (counts > 0).sum())
        return np.asarray(share[self.problem.labels], dtype=np.float64)
