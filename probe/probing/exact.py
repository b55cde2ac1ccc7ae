"""Learning a head on frozen features: one table of solvers, each a function of the same problem.

A method that is convex on frozen features is *data* for the exact solver (see `probe.core.adjustment`): this
module only asks the loss for its adjustment. Hyper-parameters come from the validation rows; the head that is
kept is fitted to training and validation rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe import losses, methods
from probe.core import scaling
from probe.core.class_stats import ClassStats
from probe.core.scaling import FeatureMatrix, Scaling
from probe.errors import UserError, nearest
from probe.evaluation import groups, metrics
from probe.heads.fitted import FittedHead
from probe.losses.spec import HELD_OUT_FREQUENCY
from probe.probing import robust
from probe.recipe import MethodConfig, Recipe, SolverConfig
from probe.runs.inputs import RunInputs
from probe.solve import l2_grid, logistic, ridge
from probe.solve.logistic import LinearSolution

PLAIN = MethodConfig(name="erm")
ROUGH = 1e-2  # certified relative excess that is good enough to compare strengths or rank classes
PROMPTS = 256  # encoded at a time
IN_MEMORY = 4 << 30  # bytes of features up to which they are held in memory; beyond, they are read in blocks


@dataclass(frozen=True)
class ProbeProblem:
    """What every solver of a run starts from; the same rows for every method."""

    raw: Tensor | FeatureMatrix  # N x D, as the backbone gave them: training and validation rows
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    metric: str = "accuracy"  # what validation maximises
    scaling: Scaling = scaling.NEUTRAL
    sample_weight: NDArray[np.floating] | None = None
    text: Callable[[], tuple[Tensor, float]] | None = None  # zero-shot: K x D class embeddings, logit scale
    ids: Sequence[str] | None = None  # of the rows, for messages
    key: str = ""  # of all that the features were made of: the cache entries' hashes

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def names(self, rows: NDArray[np.int64]) -> list[str]:
        """What people know these rows by."""
        return [f"row {i}" if self.ids is None else self.ids[i] for i in rows.tolist()]

    def only(self, rows: NDArray[np.int64]) -> ProbeProblem:
        """The problem of these rows, their features scaled as before."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return replace(
            self, raw=part(self.raw, rows), y=self.y[rows], sample_weight=weight, ids=self.names(rows)
        )

    @cached_property
    def X(self) -> Tensor | FeatureMatrix:
        """The features as the head sees them."""
        return self.scaling(self.raw) if isinstance(self.raw, Tensor) else self.scaling.lazily(self.raw)

    @cached_property
    def basis(self) -> logistic.Basis:
        """The one expensive decomposition, shared by all strengths, methods and folds."""
        return logistic.Basis(self.X)

    def loss(self, method: MethodConfig, rows: NDArray[np.int64] | None = None) -> Any:
        """The method's loss, with the counts and statistics of these rows only."""
        y = self.y if rows is None else self.y[rows]
        stats, spec = None, losses.info(method.name)
        needed = spec.needed_stats(spec.resolve(method.params))
        if needed is not None:
            seen = self.X if needed.scaled else self.raw
            stats = ClassStats.from_features(part(seen, rows), y, self.num_classes, p=needed.p)
        counts = np.bincount(y, minlength=self.num_classes)
        return losses.make(
            method.name, num_classes=self.num_classes, class_counts=counts, stats=stats, **method.params
        )


def part(features: Tensor | FeatureMatrix, rows: NDArray[np.int64] | None) -> Tensor | FeatureMatrix:
    """Some rows: copied if the features are in memory, a view if they are on disk."""
    if rows is None:
        return features
    return features[torch.from_numpy(rows)] if isinstance(features, Tensor) else features.view(rows)


def pose(recipe: Recipe, material: RunInputs) -> ProbeProblem:
    """The problem that a recipe states about its material."""
    matrix = material.matrix
    raw = matrix.tensor() if 4 * matrix.shape[0] * matrix.shape[1] <= IN_MEMORY else matrix
    backbone, data = material.backbone, material.data
    kind = recipe.features.scaling
    if kind == "auto":
        kind = "standard" if backbone.standardise else "none"
    return ProbeProblem(
        raw=raw,
        y=material.y,
        class_names=data.class_names,
        metric=data.metric,
        scaling=scaling.make(kind, raw),
        text=lambda: text_classifier(backbone, data.class_names, data.templates),
        ids=[name for f in material.training for name in f.ids],
        key=" ".join(f.key for f in material.training),
    )


@dataclass(frozen=True)
class Fit:
    """A trained head and what is worth recording about its training."""

    head: FittedHead
    record: dict[str, Any] = field(default_factory=dict)
    loss: Any = None  # the loss that was minimised, with its margins and remarks


def exactly(solver: SolverConfig) -> SolverConfig:
    """The exact solver of the plain probe beside a run with this one."""
    return solver if solver.name == "lbfgs" else SolverConfig(name="lbfgs")


def check(method: MethodConfig, solver: SolverConfig) -> None:
    """Refuse what could only fail, or would silently be something else, before anything is computed."""
    if solver.name not in SOLVERS:
        raise UserError(f'"{solver.name}" solves nothing exactly{nearest(solver.name, SOLVERS)}')
    row = losses.info(method.name)
    losses.catalogue.resolve(method.name, method.params)
    if solver.name != "lbfgs" and method.name != PLAIN.name:
        raise UserError(
            f"solver {solver.name} minimises no loss, so method {method.name} cannot act on it; "
            "use solver lbfgs, or method erm"
        )
    if row.frozen == "no effect":
        raise UserError(f"{method.name} has no effect on frozen features: {row.why}")
    if row.frozen != "exact":
        raise UserError(f"{method.name} has no exact solver: {row.why}; use --solver sgd, or --finetune")


def fit(problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]) -> Fit:
    """Choose the strength on the `held` rows, then fit all rows."""
    check(method, solver)
    return SOLVERS[solver.name](problem, method, solver, held)


def _lbfgs(problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]) -> Fit:
    method = with_frequency(problem, method, solver, held)
    record = strength(problem, solver, held, _paths(problem, method))
    loss = problem.loss(method)
    known = {"l2": record["l2"], "sample_weight": problem.sample_weight, "basis": problem.basis}
    robust.settle(loss, problem.X, problem.y, **known)
    solution = logistic.fit(
        problem.X, problem.y, problem.num_classes, adjustment=loss.adjustment(), tol=solver.tol, **known
    )
    record |= {"objective": solution.objective, "iterations": solution.iterations, "status": solution.status}
    return Fit(_linear(problem, solution), record, loss)


def _paths(problem: ProbeProblem, method: MethodConfig) -> Callable[[NDArray[np.int64]], Any]:
    """From rows to a function that fits them with several strengths, roughly.

    A robust method's class weights are those it starts from, all equal: its strength is chosen for that.
    """

    def path(kept: NDArray[np.int64]) -> Callable[[Sequence[float]], Sequence[LinearSolution]]:
        adjustment = problem.loss(method, kept).adjustment()
        X, y = part(problem.X, kept), problem.y[kept]
        solver = logistic.LogisticSolver(
            X, y, problem.num_classes, adjustment=adjustment, basis=problem.basis
        )
        return partial(solver.path, tol=ROUGH)

    return path


def with_frequency(
    problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]
) -> MethodConfig:
    """Fill a method's effective frequencies (Classes Are Not Equal, eq. 11), where it wants some.

    EF(c) is the mean probability that a plain probe gives class c on samples of class c that it has not seen;
    cross-fitting lets every training row be such a sample once.
    """
    name, params = methods.catalogue.resolve(method.name, method.params)[1]  # of the loss inside
    wanted = losses.info(name).unfilled(HELD_OUT_FREQUENCY, params)
    if wanted is None:
        return method
    l2 = strength(problem, solver, held, _paths(problem, PLAIN))["l2"]
    _, own = groups.crossfit(problem.y, problem.num_classes, held_out_probabilities(problem, l2))
    filled = {**params, wanted: np.maximum(own, 1e-3).tolist()}
    if name == method.name:
        return MethodConfig(name=name, **filled)
    return MethodConfig(
        name=method.name, **{**method.params, methods.catalogue.INNER: {"name": name, **filled}}
    )


def _ridge(problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]) -> Fit:
    def path(kept: NDArray[np.int64]) -> Callable[[Sequence[float]], Sequence[ridge.RidgeHead]]:
        return ridge.Ridge(part(problem.X, kept), problem.y[kept], problem.num_classes).path

    record = strength(problem, solver, held, path)
    whole = ridge.Ridge(problem.X, problem.y, problem.num_classes, sample_weight=problem.sample_weight)
    return Fit(_linear(problem, whole.path([record["l2"]])[0]), record)


def strength(
    problem: ProbeProblem,
    solver: SolverConfig,
    held: NDArray[np.int64],
    path: Callable[[NDArray[np.int64]], Any],
) -> dict[str, Any]:
    """The given strength, or the one whose head, fitted to the other rows, does best on the `held` ones."""
    if solver.l2 is not None:
        return {"l2": solver.l2}
    if len(held) == 0:
        raise UserError(
            "no image is left to choose the strength on: give it with --l2, or add training images"
        )
    heads = path(np.setdiff1d(np.arange(len(problem.y)), held))
    X, y = part(problem.X, held), problem.y[held]

    def score(strengths: Sequence[float]) -> list[float]:
        guesses = [head.logits(X).argmax(dim=1).numpy() for head in heads(strengths)]
        return [metrics.score(guess, y, problem.num_classes, problem.metric) for guess in guesses]

    chosen = l2_grid.select(score, full=solver.grid == "full")
    return {"l2": chosen.l2, "validation": [list(row) for row in chosen.table]}


def _linear(problem: ProbeProblem, solution: LinearSolution | ridge.RidgeHead) -> FittedHead:
    return FittedHead("linear", {"weight": solution.weight, "bias": solution.bias}, scaling=problem.scaling)


def _zeroshot(
    problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]
) -> Fit:
    if problem.text is None:
        raise UserError("zero-shot needs a text encoder; choose a CLIP backbone (see `probe backbones`)")
    embeddings, scale = problem.text()
    return Fit(FittedHead("cosine", {"weight": embeddings}, {"scale": scale}))


def _knn(problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]) -> Fit:
    settings = {"num_classes": problem.num_classes, "k": solver.k, "weighted": solver.weighted}
    bank = problem.X if isinstance(problem.X, Tensor) else problem.X.tensor()
    tensors = {"bank": bank, "labels": torch.from_numpy(problem.y)}
    return Fit(FittedHead("knn", tensors, settings, problem.scaling), {"k": solver.k})


SOLVERS: dict[str, Callable[[ProbeProblem, MethodConfig, SolverConfig, NDArray[np.int64]], Fit]] = {
    "lbfgs": _lbfgs,
    "ridge": _ridge,
    "knn": _knn,
    "zeroshot": _zeroshot,
}


def held_out_probabilities(problem: ProbeProblem, l2: float) -> Callable[..., NDArray[np.floating]]:
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
    prompts = [template.format(name.replace("_", " ")) for name in class_names for template in templates]
    batches = [prompts[i : i + PROMPTS] for i in range(0, len(prompts), PROMPTS)]
    unit = torch.cat([F.normalize(backbone.encode_text(batch).float().cpu(), dim=1) for batch in batches])
    return unit.view(len(class_names), len(templates), -1).mean(dim=1), float(backbone.logit_scale)
