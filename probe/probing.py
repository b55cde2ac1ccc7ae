"""Learning a head on frozen features: one table of solvers, each a function of the same problem.

A method that is convex on frozen features is *data* for the exact solver (see `probe.rows`): this module only
asks the loss for its rows. Hyper-parameters come from the validation rows; the head that is kept is fitted to
training and validation rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe import losses, scaling
from probe.errors import UserError
from probe.evaluate import metrics
from probe.fitted import FittedHead
from probe.material import Material
from probe.recipe import Method, Recipe, Solver
from probe.scaling import FeatureMatrix, Scaling
from probe.solve import logistic, ridge, robust, select
from probe.solve.logistic import LinearSolution
from probe.stats import ClassStats

PLAIN = Method(name="erm")
ROUGH = 1e-3  # certified relative excess that is good enough to compare strengths or rank classes
IN_MEMORY = 4 << 30  # bytes of features up to which they are held in memory; beyond, they are read in blocks


@dataclass(frozen=True)
class Problem:
    """What every solver of a run starts from; the same rows for every method."""

    raw: Tensor | FeatureMatrix  # N x D, as the backbone gave them: training and validation rows
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    metric: str = "accuracy"  # what validation maximises
    scaling: Scaling = scaling.NEUTRAL
    sample_weight: NDArray[np.floating] | None = None
    text: Callable[[], tuple[Tensor, float]] | None = None  # zero-shot: K x D class embeddings, logit scale

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def X(self) -> Tensor | FeatureMatrix:
        """The features as the head sees them."""
        return self.scaling(self.raw) if isinstance(self.raw, Tensor) else self.scaling.lazily(self.raw)

    @cached_property
    def basis(self) -> logistic.Basis:
        """The one expensive decomposition, shared by all strengths, methods and folds."""
        return logistic.Basis(self.X)

    def loss(self, method: Method, rows: NDArray[np.int64] | None = None) -> Any:
        """The method's loss, with the counts and statistics of these rows only."""
        y = self.y if rows is None else self.y[rows]
        p = losses.catalogue.resolve(method.name, method.params).get("p", 2.0)
        return losses.make(
            method.name,
            num_classes=self.num_classes,
            class_counts=np.bincount(y, minlength=self.num_classes),
            stats=ClassStats.from_features(part(self.raw, rows), y, self.num_classes, p=p),
            **method.params,
        )


def part(features: Tensor | FeatureMatrix, rows: NDArray[np.int64] | None) -> Tensor | FeatureMatrix:
    """Some rows: copied if the features are in memory, a view if they are on disk."""
    if rows is None:
        return features
    return features[torch.from_numpy(rows)] if isinstance(features, Tensor) else features.view(rows)


def pose(recipe: Recipe, material: Material) -> Problem:
    """The problem that a recipe states about its material."""
    matrix = material.matrix
    raw = matrix.tensor() if 4 * matrix.shape[0] * matrix.shape[1] <= IN_MEMORY else matrix
    backbone, data = material.backbone, material.data
    kind = recipe.features.scaling
    if kind == "auto":
        kind = "standard" if backbone.standardise else "none"
    return Problem(
        raw=raw,
        y=material.y,
        class_names=data.class_names,
        metric=data.metric,
        scaling=scaling.make(kind, raw),
        text=lambda: text_classifier(backbone, data.class_names, data.templates),
    )


@dataclass(frozen=True)
class Fit:
    """A trained head and what is worth recording about its training."""

    head: FittedHead
    record: dict[str, Any] = field(default_factory=dict)
    loss: Any = None  # the loss that was minimised, with its margins and remarks


def fit(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Fit:
    """Choose the strength on the `held` rows, then fit all rows."""
    return SOLVERS[solver.name](problem, method, solver, held)


def _lbfgs(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Fit:
    method = with_frequency(problem, method, solver, held)

    def path(kept: NDArray[np.int64]) -> Callable[[Sequence[float]], Sequence[LinearSolution]]:
        loss = problem.loss(method, kept)
        X, y = part(problem.X, kept), problem.y[kept]
        heads = logistic.Solver(X, y, problem.num_classes, rows=loss.rows(), basis=problem.basis)
        return partial(heads.path, tol=ROUGH)

    record = strength(problem, solver, held, path)
    loss = problem.loss(method)
    known = {"l2": record["l2"], "sample_weight": problem.sample_weight, "basis": problem.basis}
    robust.settle(loss, problem.X, problem.y, **known)
    solution = logistic.fit(
        problem.X, problem.y, problem.num_classes, rows=loss.rows(), tol=solver.tol, **known
    )
    record |= {"objective": solution.objective, "iterations": solution.iterations, "status": solution.status}
    return Fit(_linear(problem, solution), record, loss)


def with_frequency(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Method:
    """Fill a method's effective frequencies (Classes Are Not Equal, eq. 11), where it wants some.

    EF(c) is the mean probability that the plain probe, fitted to the other rows, gives class c on the `held`
    rows of class c.
    """
    if losses.catalogue.resolve(method.name, method.params).get("frequency", ()) is not None:
        return method
    plain = _lbfgs(problem, PLAIN, solver, held).record["l2"]
    kept = np.setdiff1d(np.arange(len(problem.y)), held)
    probability = held_out_probabilities(problem, plain)(kept, held)
    y = problem.y[held]
    own = np.bincount(y, weights=probability[np.arange(len(y)), y], minlength=problem.num_classes)
    frequency = own / np.maximum(np.bincount(y, minlength=problem.num_classes), 1)
    return Method(name=method.name, **{**method.params, "frequency": np.maximum(frequency, 1e-3).tolist()})


def _ridge(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Fit:
    def path(kept: NDArray[np.int64]) -> Callable[[Sequence[float]], Sequence[ridge.RidgeHead]]:
        return ridge.Ridge(part(problem.X, kept), problem.y[kept], problem.num_classes).path

    record = strength(problem, solver, held, path)
    whole = ridge.Ridge(problem.X, problem.y, problem.num_classes, sample_weight=problem.sample_weight)
    return Fit(_linear(problem, whole.path([record["l2"]])[0]), record)


def strength(
    problem: Problem, solver: Solver, held: NDArray[np.int64], path: Callable[[NDArray[np.int64]], Any]
) -> dict[str, Any]:
    """The given strength, or the one whose head, fitted to the other rows, does best on the `held` ones."""
    if solver.l2 is not None:
        return {"l2": solver.l2}
    heads = path(np.setdiff1d(np.arange(len(problem.y)), held))
    X, y = part(problem.X, held), problem.y[held]

    def score(strengths: Sequence[float]) -> list[float]:
        guesses = [head.logits(X).argmax(dim=1).numpy() for head in heads(strengths)]
        return [metrics.score(guess, y, problem.num_classes, problem.metric) for guess in guesses]

    chosen = select.select(score, full=solver.grid == "full")
    return {"l2": chosen.l2, "validation": [list(row) for row in chosen.table]}


def _linear(problem: Problem, solution: LinearSolution | ridge.RidgeHead) -> FittedHead:
    return FittedHead("linear", {"weight": solution.weight, "bias": solution.bias}, scaling=problem.scaling)


def _zeroshot(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Fit:
    if problem.text is None:
        raise UserError("zero-shot needs a text encoder; choose a CLIP backbone (see `probe backbones`)")
    embeddings, scale = problem.text()
    return Fit(FittedHead("cosine", {"weight": embeddings}, {"scale": scale}))


def _knn(problem: Problem, method: Method, solver: Solver, held: NDArray[np.int64]) -> Fit:
    settings = {"num_classes": problem.num_classes, "k": solver.k, "weighted": solver.weighted}
    bank = problem.X if isinstance(problem.X, Tensor) else problem.X.tensor()
    tensors = {"bank": bank, "labels": torch.from_numpy(problem.y)}
    return Fit(FittedHead("knn", tensors, settings, problem.scaling), {"k": solver.k})


SOLVERS: dict[str, Callable[[Problem, Method, Solver, NDArray[np.int64]], Fit]] = {
    "lbfgs": _lbfgs,
    "ridge": _ridge,
    "knn": _knn,
    "zeroshot": _zeroshot,
}


def held_out_probabilities(problem: Problem, l2: float) -> Callable[..., NDArray[np.floating]]:
    """`fit_predict` for `evaluate.groups.crossfit`: the plain probe of strength `l2`."""

    def fit_predict(kept: NDArray[np.int64], held: NDArray[np.int64]) -> NDArray[np.floating]:
        solution = logistic.fit(
            part(problem.X, kept), problem.y[kept], problem.num_classes, l2=l2, basis=problem.basis, tol=ROUGH
        )
        return F.softmax(solution.logits(part(problem.X, held)), dim=1).numpy()

    return fit_predict


def text_classifier(
    backbone: Any, class_names: Sequence[str], templates: Sequence[str]
) -> tuple[Tensor, float]:
    """CLIP's zero-shot head: for each class the mean of its unit prompt embeddings."""
    rows = []
    for name in class_names:
        prompts = [template.format(name.replace("_", " ")) for template in templates]
        rows.append(F.normalize(backbone.encode_text(prompts).float(), dim=1).mean(dim=0))
    return torch.stack(rows), float(backbone.logit_scale)
