"""How good a recipe is, by its training images alone: every one predicted by a head that has not seen it.

`probe improve` judges levers here; test images are no part of it. What a recipe leaves open (l2, a range
of a method's parameter) is chosen for each fold by the images of the other folds, so that no image judges
a choice it had a part in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.data import Dataset, stratified_holdout
from probe.errors import UserError
from probe.evaluation.groups import folds
from probe.evaluation.judging import Judge, Objective
from probe.heads.fitted import OnScaled
from probe.methods import ranges
from probe.probing.candidates import Candidate, CrossFit, crossfit_candidates
from probe.probing.problem import ProbeProblem
from probe.recipe import Recipe
from probe.runs import selecting
from probe.runs.inputs import RunInputs, gather, load_data
from probe.runs.posing import pose

FOLDS = 5
SEED = 0  # of the folds: those of a run's first seed, which chooses by them where its holdout is small
TEST = "test"


@dataclass(frozen=True)
class Judgement:
    """What the held-out predictions of a recipe's heads are worth, image by image."""

    correct: NDArray[np.bool_]  # n
    # n: which images were predicted; all, except where a training would take too long or showed no gain
    judged: NDArray[np.bool_]
    chosen: str  # what was chosen by all folds together, in words; empty where nothing was open
    seconds: float
    solving: float = 0.0  # of them, after the features were there

    def stored(self) -> dict[str, Any]:
        """As plain values, for a file."""
        bits = {name: np.packbits(getattr(self, name)).tobytes().hex() for name in ("correct", "judged")}
        rest = {name: getattr(self, name) for name in ("chosen", "seconds", "solving")}
        return {**bits, "images": len(self.correct), **rest}

    @classmethod
    def restored(cls, row: dict[str, Any]) -> Judgement:
        """The inverse of `stored`."""
        correct, judged = (
            np.unpackbits(np.frombuffer(bytes.fromhex(row[name]), np.uint8), count=row["images"]).astype(bool)
            for name in ("correct", "judged")
        )
        return cls(correct, judged, row["chosen"], row["seconds"], row["solving"])


class TrainingImages:
    """The images that judge, their folds, and the groups of their classes by the plain probe."""

    _latest: tuple[str, CrossFit] | None = None  # of features that are not the plain probe's

    def __init__(self, plain: Recipe, cache: Path | None) -> None:
        self.plain, self.cache = plain, cache
        whole = load_data(plain, cache)
        parts = {name: split for name, split in whole.by_name.items() if name != TEST}
        self.data: Dataset = replace(whole, by_name=parts)
        self.test_images = len(whole[TEST])  # how many there are is all that is asked of them
        self.ids: Sequence[str] = ()

    @cached_property
    def fold(self) -> NDArray[np.int64]:
        """n: the fold of each image, as the plain probe's inputs order them."""
        return folds(self._plain.problem.labels, FOLDS, SEED)

    @cached_property
    def _plain(self) -> CrossFit:
        _, problem = self.posed(self.plain)
        self.ids = tuple(problem.ids or ())
        return CrossFit(problem, folds(problem.labels, FOLDS, SEED))

    @cached_property
    def judge(self) -> Judge:
        """Groups that the plain probe's held-out predictions rank, for each fold by the others."""
        return self._plain.judge

    @property
    def counts(self) -> NDArray[np.int64]:
        """K: the images of each class."""
        return np.bincount(self.judge.labels, minlength=self.judge.num_classes)

    def posed(self, recipe: Recipe) -> tuple[RunInputs, ProbeProblem]:
        """The features of the training images, extracted where they are missing, and their problem."""
        inputs = gather(recipe, cache=self.cache, data=self.data)
        problem = pose(recipe, inputs)
        if self.ids and tuple(problem.ids or ()) != self.ids:
            raise UserError("these features are not of the same training images as the plain probe's")
        return inputs, problem

    def crossfit(self, recipe: Recipe) -> CrossFit:
        """Exact probes on the features of a recipe; losses on the same features share what is solved."""
        if _features(recipe) == _features(self.plain):
            return self._plain
        if self._latest is None or self._latest[0] != _features(recipe):
            self._latest = None  # before others are read: two sets of features may fill the memory
            frozen = recipe.model_copy(update={"finetune": False})
            self._latest = _features(recipe), CrossFit(self.posed(frozen)[1], self.fold)
        return self._latest[1]

    def judgement(self, recipe: Recipe, work: Path, before: Judgement | None = None) -> Judgement:
        """The held-out predictions of a recipe's heads; `work` is for the checkpoints of trainings.

        A training for every fold ends with the fold after which hard classes have gained nothing over
        `before` so far.
        """
        begin = time.perf_counter()
        crossfit = self.crossfit(recipe)
        solving = time.perf_counter()
        if recipe.finetune:
            correct, judged, chosen = _tuned(self, recipe, crossfit.problem, work)
        elif recipe.trains:
            correct, judged, chosen = _by_sgd(self, recipe, crossfit.problem, work, before)
        else:
            correct, judged, chosen = _solved(self, recipe, crossfit)
        end = time.perf_counter()
        return Judgement(correct, judged, chosen, end - begin, end - solving)


def _features(recipe: Recipe) -> str:
    """What features depend on, where the data are the same."""
    return recipe.backbone.model_dump_json() + recipe.features.model_dump_json()


Judged = tuple[NDArray[np.bool_], NDArray[np.bool_], str]


def _solved(images: TrainingImages, recipe: Recipe, crossfit: CrossFit) -> Judged:
    """By the exact solver: one cross-fit of all candidates serves every fold's choice."""
    objective = Objective.of(recipe.select.name, crossfit.problem.metric, recipe.select.budget)
    tried = crossfit_candidates(crossfit, selecting.points(recipe), recipe.solver, objective)
    predicted = np.empty(len(images.fold), dtype=np.int64)
    for part in range(FOLDS):
        held = images.fold == part
        predicted[held] = _best_by_others(crossfit, tried.candidates, objective, part).predicted[held]
    return predicted == crossfit.labels, np.ones(len(predicted), dtype=bool), _in_words(recipe, tried.chosen)


def _best_by_others(
    crossfit: CrossFit, candidates: Sequence[Candidate], objective: Objective, part: int
) -> Candidate:
    """The candidate that is best on all images but those of one fold."""
    others = crossfit.fold != part
    right, confidence = crossfit.reference_values
    fold = np.unique(crossfit.fold[others], return_inverse=True)[1]
    judge = Judge.ranked(
        crossfit.labels[others], crossfit.problem.num_classes, fold, right[others], confidence[others]
    )
    judge.check(objective)
    scores = [judge.scores(crossfit.correct(c)[others]) for c in candidates]
    return candidates[objective.best(scores, [c.l2 for c in candidates])]


def _in_words(recipe: Recipe, chosen: Candidate) -> str:
    """`power 0.667, l2 12`: what was open, and what it became."""
    values = {**ranges.chosen(recipe.method, chosen.method.params), "l2": chosen.l2}
    return ", ".join(f"{key} {value:.3g}" for key, value in values.items())


def _by_sgd(
    images: TrainingImages, recipe: Recipe, problem: ProbeProblem, work: Path, before: Judgement | None
) -> Judged:
    """A training on the features for each fold, without its images."""
    from probe.train.sgd import probe_sgd

    correct, judged = (np.zeros(problem.images, dtype=bool) for _ in ("correct", "judged"))
    for part, kept, held in _parts(images.fold):
        inner = stratified_holdout(problem.labels[kept], recipe.data.val_fraction, SEED)[1]
        fit = probe_sgd(
            problem.only(kept),
            recipe.method,
            recipe.solver,
            inner,
            settings=recipe.train,
            folder=work / f"fold-{part}",
        )
        scores = problem.logits(OnScaled(fit.head), held)
        correct[held] = scores.argmax(dim=1).numpy() == problem.labels[held]
        judged[held] = True
        if before is not None and not _gains(images.judge, correct, before.correct, judged):
            break
    return correct, judged, ""


def _gains(
    judge: Judge, correct: NDArray[np.bool_], before: NDArray[np.bool_], rows: NDArray[np.bool_]
) -> bool:
    """Are hard classes better than before on these rows, be it by chance?"""
    some = judge.only(rows)
    return some.score(correct[rows], "hard") > some.score(before[rows], "hard")


def _parts(fold: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    for part in range(FOLDS):
        yield part, np.flatnonzero(fold != part), np.flatnonzero(fold == part)


def _tuned(images: TrainingImages, recipe: Recipe, problem: ProbeProblem, work: Path) -> Judged:
    """One training, without the first fold, whose images take the place of test images."""
    from probe.train.finetuning import finetune

    ids = set(problem.ids or ())  # of the images that can be read
    usable = {name: np.flatnonzero([i in ids for i in images.data[name].ids]) for name in images.data.splits}
    first = len(usable["train"])
    held = np.flatnonzero((images.fold == 0) & (np.arange(len(images.fold)) < first))
    kept = np.setdiff1d(np.arange(len(images.fold)), held)
    parts, at = {}, 0
    for name, rows in usable.items():
        mine = kept[(kept >= at) & (kept < at + len(rows))] - at
        parts[name], at = images.data[name].subset(rows[mine], name), at + len(rows)
    test = images.data["train"].subset(usable["train"][held], TEST)
    data = replace(images.data, by_name={**parts, TEST: test})
    inner = stratified_holdout(problem.labels[kept], recipe.data.val_fraction, SEED)[1]
    tuned = finetune(recipe, data, inner, folder=work / "fold-0", pose=lambda _: problem.only(kept))
    correct = np.zeros(problem.images, dtype=bool)
    correct[held] = tuned.scores.argmax(dim=1).numpy() == problem.labels[held]
    judged = np.zeros(problem.images, dtype=bool)
    judged[held] = True
    return correct, judged, ""
