"""Second stages on frozen features: what becomes of a head, solved or trained before, without its encoder.

| name        | the second stage                                                    | chosen by the holdout |
|-------------|---------------------------------------------------------------------|-----------------------|
| crt         | a new head: the loss, every class counting alike                    | l2                    |
| jtt         | a new head: the loss, the first head's errors counting `up` times   | l2                    |
| tau-norm    | w_k / |w_k|^tau, without a bias                                     | tau                   |
| lws         | f_k z_k, the K scales learnt with every class counting alike        |                       |
| la-posthoc  | z - tau log pi                                                      |                       |
| temperature | z / T                                                               | T                     |

The first head is one that a run left, or the exact solution of a loss. Whatever the holdout chooses is chosen
for a head that has not seen it; the head that is kept is made of all rows, the holdout included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.core.class_stats import ClassStats
from probe.core.scaling import BLOCK
from probe.errors import UserError
from probe.evaluation import metrics
from probe.evaluation.groups import folds
from probe.heads.fitted import FittedHead, OnScaled
from probe.losses.base import Loss
from probe.probing import exact
from probe.probing.problem import Fit, ProbeProblem, take_rows
from probe.probing.select_l2 import ROUGH, logistic_path, select_l2
from probe.probing.selection import HOLDOUT, Selector
from probe.probing.settings import LossChoice, LossSettings, SolverSettings
from probe.solve import post_hoc

TAUS = tuple(round(0.1 * i, 1) for i in range(21))  # as the authors' release scans them
FOLDS = 5  # of cross-fitted errors
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


def check(settings: StageSettings, solver: SolverSettings) -> None:
    """Refuse what could only fail, or would silently be something else, before anything is computed."""
    if solver.name != "lbfgs":
        raise UserError(f"{settings.name} is solved on frozen features: use solver lbfgs, not {solver.name}")
    exact.check(settings.loss, solver)
    first, stage = settings.first, STAGES[settings.name]
    if first is not None and first.saw_holdout and stage.chooses(settings.params):
        raise UserError(
            f"{settings.name}: {first.run} has learnt from every training image, so none is left to choose "
            f"{stage.choice} by; {stage.way_out}train it with train.keep=best"
        )


def fit(problem: ProbeProblem, settings: StageSettings, solver: SolverSettings, holdout: Images) -> Fit:
    """Choose on the `holdout` images what the settings leave open, then make the head of all images."""
    stage = STAGES[settings.name](problem, settings, solver, holdout)
    stage.choose()
    return stage.fit()


def fit_selected(
    problem: ProbeProblem, points: Sequence[StageSettings], solver: SolverSettings, selector: Selector
) -> Fit:
    """The same for the best of several settings, by the selector's objective on its holdout."""
    judge, objective = selector.holdout_judge, selector.objective
    judge.check(objective)
    stages = [STAGES[point.name](problem, point, solver, selector.holdout) for point in points]
    scores = []
    for stage in stages:
        stage.choose()
        predicted = problem.logits(OnScaled(stage.head(stage.kept)), selector.holdout).argmax(dim=1).numpy()
        scores.append(judge.scores(predicted == judge.labels))
    best = objective.best(scores, [0.0] * len(stages))
    tried = [{"parameters": dict(p.params), **row} for p, row in zip(points, scores, strict=True)]
    about = {**selector.described(HOLDOUT), "parameters": dict(points[best].params), "tried": tried}
    made = stages[best].fit()
    return replace(made, record={**made.record, "select": about})


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
        path = logistic_path(problem, lambda rows: problem.loss(self.inner, rows))
        return select_l2(problem, self.solver, self.holdout, path)

    def solved(self, problem: ProbeProblem, images: Images, l2: float, tol: float | None = None) -> Any:
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


class Refit(SecondStage, ABC):
    """A new head of the same loss, where some images count more."""

    @abstractmethod
    def weights(self, images: Images) -> NDArray[np.float64]:
        """n numbers, of which those of `images` are used and come from these images alone."""

    def choose(self) -> None:
        given = self.solver.l2 is not None
        problem = self.problem if given else self.problem.weighted(self.weights(self.kept))
        self.record = self.l2_of(problem)

    def head(self, images: Images) -> FittedHead:
        weighted = self.problem.weighted(self.weights(images))
        return exact.linear_head(self.problem, self.solved(weighted, images, self.record["l2"]))


class CRT(Refit):
    """Classifier re-training (Kang et al. 2020): cross-entropy weighted by 1 / n_k, on the same features."""

    def weights(self, images: Images) -> NDArray[np.float64]:
        return self.balanced(images)

    def remarks(self) -> tuple[str, ...]:
        first = self.settings.first
        if first is None or not first.saw_holdout or self.solver.l2 is not None:
            return ()
        return (
            f"l2 was chosen by images that {first.run} had learnt from, so it may be too weak; give it with "
            "--l2, or train the first stage with train.keep=best",
        )


class JTT(Refit):
    """Just train twice (Liu et al. 2021): an error of the first head counts as `up` images."""

    def choose(self) -> None:
        self.first = self.l2_of(self.problem)["l2"]
        super().choose()
        self.record["first"] = {"l2": self.first}

    def weights(self, images: Images) -> NDArray[np.float64]:
        labels, parts = self.problem.labels, [(images, images)]
        if self.settings.params["errors"] == "crossfit":
            fold = folds(labels[images], FOLDS, 0)
            parts = [(images[fold != part], images[fold == part]) for part in range(FOLDS)]
        weight = np.ones(len(labels))
        for learnt, judged in parts:
            if len(judged):
                solution = self.solved(self.problem, learnt, self.first, max(self.solver.tol, ROUGH**2))
                wrong = self.problem.logits(solution, judged).argmax(dim=1).numpy() != labels[judged]
                weight[judged[wrong]] = self.settings.params["up"]
        self.errors = int((weight != 1).sum()) if self.settings.params["up"] != 1 else 0
        return weight

    def fit(self) -> Fit:
        made = super().fit()
        made.record["first"]["errors"] = self.errors
        return replace(made, remarks=self.remarks())

    def remarks(self) -> tuple[str, ...]:
        if self.errors or self.settings.params["up"] == 1:
            return ()
        return ("the first stage makes no error, so jtt is plain training; use errors=crossfit",)


class OnHead(SecondStage, ABC):
    """The first head's scores, times a factor for each class and shifted."""

    def choose(self) -> None:
        self._solved: dict[int, FittedHead] = {}  # by the number of images: all, or all but the holdout
        if self.settings.first is None:
            self.record = self.l2_of(self.problem)

    def first(self, images: Images) -> FittedHead:
        """The stored first head, or the solution of these images."""
        if self.settings.first is not None:
            return self.settings.first.head
        if len(images) not in self._solved:
            solution = self.solved(self.problem, images, self.record["l2"])
            self._solved[len(images)] = exact.linear_head(self.problem, solution)
        return self._solved[len(images)]

    def base(self, images: Images) -> FittedHead:
        """The head whose scores are changed."""
        return self.first(images)

    @abstractmethod
    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        """Factor and shift, for the head of these images."""

    def head(self, images: Images) -> FittedHead:
        return self.base(images).adjusted(*self.change(images))

    def fit(self) -> Fit:
        return replace(super().fit(), first=self.first(self.everything))

    def held_out(self, head: FittedHead) -> tuple[Tensor, Tensor]:
        """m x K scores of the holdout, and its m labels."""
        if len(self.holdout) == 0:
            raise UserError(f"no image is left to choose {self.choice} by: add training images")
        scores = self.problem.logits(OnScaled(head), self.holdout)
        return scores, torch.from_numpy(self.problem.labels[self.holdout])


class TauNorm(OnHead):
    """w_k / |w_k|^tau without a bias (Kang et al. 2020): tau 0 keeps the weights, 1 gives them unit length.

    With `centre` the features are taken from the mean of the class means: pooled features of a network share
    a large direction, and a free bias balances it. As published (centre false), a probe without its bias is
    near chance. A class without training images has no weights; it keeps the bias that never predicts it.
    """

    choice, way_out = "tau", "give method.tau, or "

    @classmethod
    def chooses(cls, params: Mapping[str, Any]) -> bool:
        return params["tau"] is None

    def choose(self) -> None:
        super().choose()
        self.tau = self.settings.params["tau"]
        if self.tau is None:
            scores, labels = self.held_out(self.base(self.kept))
            norm, problem = self._norm(self.kept).to(scores), self.problem
            tried = [
                metrics.score(
                    (scores / norm**tau).argmax(dim=1).numpy(),
                    labels.numpy(),
                    problem.num_classes,
                    problem.metric,
                )
                for tau in TAUS
            ]
            self.tau = TAUS[int(np.argmax(tried))]  # of equal ones the first, which changes least
            self.record["tau_validation"] = [list(row) for row in zip(TAUS, tried, strict=True)]
        self.record["tau"] = self.tau

    def _norm(self, images: Images) -> Tensor:
        norm = self.first(images).tensors["weight"].double().norm(dim=1)
        return torch.where(norm > 0, norm, 1.0)

    def base(self, images: Images) -> FittedHead:
        head = self.first(images)
        if head.kind != "linear":
            raise UserError(
                f"tau-norm changes the lengths of a linear head's weights; this head is {head.kind}"
            )
        weight, bias = head.tensors["weight"], head.tensors["bias"]
        none, new = (weight == 0).all(dim=1), torch.zeros_like(bias)
        if self.settings.params["centre"]:
            new = -(weight @ self._centre(images).to(weight))
        return replace(head, tensors={"weight": weight, "bias": torch.where(none, bias, new)})

    def _centre(self, images: Images) -> Tensor:
        """The mean of the means of these images' classes, as the head sees features."""
        rows = self.problem.rows(images)
        features = take_rows(self.problem.X, rows)
        means = ClassStats.from_features(features, self.problem.y[rows], self.problem.num_classes).mean
        assert means is not None
        present = np.unique(self.problem.y[rows])
        return means[torch.from_numpy(present)].mean(dim=0)

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        return self._norm(images) ** -self.tau, 0.0


class LWS(OnHead):
    """Learnable weight scaling (Kang et al. 2020): one scale for each class's score, bias included."""

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        problem, rows = self.problem, self.problem.rows(images)
        weight = self.balanced(images)[rows % problem.images] / problem.views
        scorer = OnScaled(self.first(images))

        def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for start in range(0, len(rows), BLOCK):
                part = rows[start : start + BLOCK]
                labels = torch.from_numpy(problem.y[part])
                scores = scorer.logits(take_rows(problem.X, part))
                yield scores, labels, torch.from_numpy(weight[start : start + BLOCK])

        scales = post_hoc.class_scales(blocks, problem.num_classes, pull=self.settings.params["pull"])
        if len(images) == len(self.everything):
            self.record["scales"] = [float(f"{scale:.6g}") for scale in scales]
        return scales, 0.0


class PostHocLA(OnHead):
    """z - tau log pi (Menon et al. 2021): the prior is taken out of a trained head's scores."""

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        counts = np.bincount(self.problem.labels[images], minlength=self.problem.num_classes)
        prior = torch.from_numpy(np.maximum(counts, 1) / np.maximum(counts, 1).sum())
        return 1.0, -self.settings.params["tau"] * prior.log()


class Temperature(OnHead):
    """z / T, with the T of the smallest cross-entropy on the holdout (Guo et al. 2017)."""

    choice = "the temperature"

    @classmethod
    def chooses(cls, params: Mapping[str, Any]) -> bool:
        return True

    def choose(self) -> None:
        super().choose()
        scores, labels = self.held_out(self.base(self.kept))
        t = post_hoc.temperature(scores, labels)
        self.record["temperature"] = t
        before, after = calibration(scores, labels), calibration(scores / t, labels)
        self.record["held_out"] = {"before": before, "after": after}

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        return 1 / self.record["temperature"], 0.0


def calibration(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Expected calibration error and mean cross-entropy of n x K scores."""
    log_p = F.log_softmax(scores.double(), dim=1)
    confidence, predicted = log_p.exp().max(dim=1)
    error = metrics.calibration_error(confidence.numpy(), (predicted == labels).numpy())
    return {"ece": error, "nll": float(F.nll_loss(log_p, labels))}


STAGES: dict[str, type[SecondStage]] = {
    "crt": CRT,
    "jtt": JTT,
    "tau-norm": TauNorm,
    "lws": LWS,
    "la-posthoc": PostHocLA,
    "temperature": Temperature,
}
