"""Probing by gradient steps: the same problem as the exact solver's, for methods that have none.

Minimises  mean_i CE-like loss + l2/(2N) |W|^2  over a head on cached features. A linear head is trained in
coordinates where SGD is at ease, which changes the path and not the problem: features are centred (a free
bias absorbs the mean) and divided by the square root of the covariance's largest eigenvalue, so that the
curvature of cross-entropy is at most 1/2 and one learning rate suits every backbone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.scaling import NEUTRAL, Scaling
from probe.errors import UserError
from probe.heads import Head, Linear, export
from probe.heads.fitted import FittedHead
from probe.losses.adjusted import AdjustedCrossEntropy
from probe.losses.base import ClassInfo, Loss
from probe.recipe.train_settings import TrainConfig
from probe.train import final_check, optim
from probe.train.build import check, make_head, make_method
from probe.train.inputs.loaders import FeatureFeed
from probe.train.loop import Task, Training
from probe.train.model.network import Network

if TYPE_CHECKING:
    from probe.probing.problem import Fit, ProbeProblem
    from probe.recipe import MethodConfig, SolverConfig

EPOCHS = 60
LR = 1.0  # half of 1 / curvature: room for the noise of batches
SKETCH = 16_384  # rows that the covariance's largest eigenvalue is estimated from
POWER_STEPS = 30


def probe_sgd(
    problem: ProbeProblem,
    method: MethodConfig,
    solver: SolverConfig,
    held: NDArray[np.int64],
    *,
    settings: TrainConfig | None = None,
    seed: int = 0,
    folder: Path | None = None,
    show: bool = True,
) -> Fit:
    """A head trained by SGD. `held` rows choose the strength and, with `keep: best`, the epoch."""
    from probe.probing.problem import Fit

    settings = settings or TrainConfig()
    check(method, settings)
    if problem.sample_weight is not None:
        raise UserError("sample weights are for the exact solver; use solver lbfgs")
    if settings.augment != TrainConfig().augment:
        raise UserError("augmentation changes images, and cached features have none; fine-tune instead")
    method = _with_frequency(problem, method, solver, held)
    kept = np.setdiff1d(np.arange(len(problem.y)), held) if settings.selects else np.arange(len(problem.y))
    plan = _plan(problem, method, settings, kept, seed)
    searched = plan.head.sized and settings.weight_decay is None
    record = _strength(problem, method, solver, held) if searched else {}
    decay, l2 = plan.decay(settings, record.get("l2"))
    training = _training(
        problem, method, settings, plan, held, decay=decay, seed=seed, folder=folder, show=show
    )
    progress = training.run()
    trained = training.release()
    # A linear head starts at zero; AdamW's decay is a shrinking of weights, and no term of an objective.
    penalty = decay if isinstance(plan.head, Linear) and training.task.optimizer == "sgd" else 0.0
    if penalty > 0:
        record.setdefault("l2", l2)  # what a given decay stands for
    size = training.batch_size
    final_check.check(trained, training.start, training.feed, size=size, seed=seed, decay=penalty)
    head = _in_plain_coordinates(export.fitted(plan.head, problem.scaling), plan.ease)
    record |= {"epochs": len(progress.epochs), "loss": progress.epochs[-1]["loss"]}
    if progress.best is not None:
        record["best_epoch"] = progress.best["epoch"]
    if plan.rows is not None and l2 > 0 and plan.loss.name == method.name:
        found = (head.tensors["weight"], head.tensors["bias"])
        record["gap"] = final_check.gap(
            plan.X, plan.y, problem.num_classes, plan.rows, found, l2=l2, basis=problem.basis
        )
    return Fit(head, record, plan.loss)


@dataclass(frozen=True)
class SgdPlan:
    """What is trained on which rows, in which coordinates."""

    X: Any  # the rows as the exact solver sees them
    y: NDArray[np.int64]
    names: list[str]
    loss: Any
    method: Any
    head: Head
    ease: Scaling
    rows: (
        ClassAdjustment | None
    )  # of the convex problem that a linear head and the loss make; None: it is not convex

    def decay(self, settings: TrainConfig, l2: float | None) -> tuple[float, float]:
        """The weight decay of a step, and the strength that it stands for in the exact objective.

        That is a sum of v CE, and steps see its mean, over sum v. The scores of a cosine head do not depend
        on the size of its weights, and a Gaussian's centre has a place: no strength belongs to either, and
        their decay is that of any training.
        """
        size = 1.0 if self.ease.spread is None else float(self.ease.spread[0])
        weight = None if self.rows is None else self.rows.weight
        mass = len(self.y) if weight is None else float(weight[torch.from_numpy(self.y)].sum())
        decay = optim.DEFAULTS["sgd"].weight_decay if l2 is None else l2 / (mass * size**2)
        decay = decay if settings.weight_decay is None else settings.weight_decay
        return decay, decay * mass * size**2


def _plan(
    problem: ProbeProblem, method: MethodConfig, settings: TrainConfig, kept: NDArray[np.int64], seed: int
) -> SgdPlan:
    X, y = _rows(problem, kept), problem.y[kept]
    loss = inner_loss(problem, method, kept)
    used = loss if settings.head == "adapter" else as_rows(loss)
    built = make_method(method, num_classes=problem.num_classes, labels=y, dim=X.shape[1], loss=used)
    head = make_head(built, settings, dim=X.shape[1], num_classes=problem.num_classes, seed=seed)
    convex = isinstance(head, Linear) and isinstance(used, FrozenRows)
    ease = _ease(X, used.scale if convex else None) if isinstance(head, Linear) else NEUTRAL
    return SgdPlan(X, y, problem.names(kept), loss, built, head, ease, loss.adjustment() if convex else None)


def _training(
    problem: ProbeProblem,
    method: MethodConfig,
    settings: TrainConfig,
    plan: SgdPlan,
    held: NDArray[np.int64],
    *,
    decay: float,
    seed: int,
    folder: Path | None,
    show: bool,
) -> Training:
    X, ease = plan.X, plan.ease
    if isinstance(X, Tensor):
        X = ease(X)  # once, instead of in every batch
    task = Task(
        Network(nn.Identity(), plan.head, NEUTRAL if isinstance(X, Tensor) else ease),
        plan.method,
        FeatureFeed(X, plan.y, plan.names),
        problem.num_classes,
        optimizer=settings.optimizer or "sgd",
        epochs=settings.epochs or EPOCHS,
        held=_held_feed(problem, held, ease) if settings.selects else None,
        metric=problem.metric,
    )
    rate = settings.lr or (LR if isinstance(plan.head, Linear) else 0.1)
    digest = f"{problem.key} {method.model_dump_json()} {settings.model_dump_json()} {decay} {X.shape} {seed}"
    return Training(
        task,
        settings.model_copy(update={"lr": rate, "weight_decay": decay}),
        seed=seed,
        folder=folder,
        digest=digest,
        show=show,
        between_checkpoints=5.0,
    )


def inner_loss(problem: ProbeProblem, method: MethodConfig, rows: NDArray[np.int64]) -> Any:
    """The loss inside the method, with the exact statistics of these rows."""
    from probe import methods
    from probe.probing.settings import LossChoice

    return problem.loss(LossChoice(*methods.catalogue.resolve(method.name, method.params)[1]), rows)


class FrozenRows(AdjustedCrossEntropy):
    """A loss as its adjustment: on frozen features that is the whole of it, because representation terms are
    constants. Without the checks that a loss makes for strangers: a step here takes a millisecond."""

    def __init__(self, loss: Loss, declared: ClassAdjustment) -> None:
        parts = (declared.scale, declared.shift, declared.weight)
        single = ClassAdjustment(*(None if part is None else part.float() for part in parts))
        super().__init__(ClassInfo(loss.spec, loss.num_classes, None, None), single)

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        if collectives.processes() == 1:
            return self.adjustment().cross_entropy(logits, targets)
        return collectives.mean(*self.losses(logits, targets))


def as_rows(loss: Any) -> Any:
    """The loss as its rows, where it declares some that do not move while it is trained."""
    declared = loss.adjustment() if loss.constant_adjustment else None
    return loss if declared is None else FrozenRows(loss, declared)


def _strength(
    problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]
) -> dict[str, Any]:
    """The given strength, or the one that validates best by the exact solver: with the method's rows or,
    where it has none, plain cross-entropy's. The strength belongs to the features more than to the loss."""
    from probe.probing.select_l2 import logistic_path, select_l2

    path = logistic_path(problem, lambda rows: inner_loss(problem, method, rows))
    return select_l2(problem, solver, held, path)


def _with_frequency(
    problem: ProbeProblem, method: MethodConfig, solver: SolverConfig, held: NDArray[np.int64]
) -> MethodConfig:
    """The same method with the effective frequencies of the loss inside it filled in, where it has such."""
    from probe import methods
    from probe.probing.exact import with_frequency
    from probe.probing.settings import LossChoice
    from probe.recipe import MethodConfig as Choice
    from probe.recipe.grammar import INNER

    loss = LossChoice(*methods.catalogue.resolve(method.name, method.params)[1])
    filled = with_frequency(problem, loss, solver, held)
    if filled is loss:
        return method
    if loss.name == method.name:
        return Choice(name=loss.name, **filled.params)
    return Choice(name=method.name, **{**method.params, INNER: {"name": loss.name, **filled.params}})


def _rows(problem: ProbeProblem, rows: NDArray[np.int64]) -> Any:
    """The chosen rows as the head sees them; everything is not copied."""
    from probe.probing.problem import take_rows

    return problem.X if len(rows) == len(problem.y) else take_rows(problem.X, rows)


def _held_feed(problem: ProbeProblem, held: NDArray[np.int64], ease: Scaling) -> FeatureFeed:
    X = _rows(problem, held)
    return FeatureFeed(ease(X) if isinstance(X, Tensor) else X, problem.y[held], problem.names(held))


def _ease(X: Any, scale: Tensor | None) -> Scaling:
    """Centre, and the size of the largest direction; rows that a method enlarges count as enlarged."""
    some = X[torch.from_numpy(np.linspace(0, len(X) - 1, min(len(X), SKETCH)).astype(np.int64))].double()
    mean = some.mean(dim=0)
    centred = some - mean
    v = torch.randn(some.shape[1], 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(POWER_STEPS):
        v = v / v.norm().clamp(min=1e-300)
        v = centred.T @ (centred @ v) / len(some)
    size = float(v.norm().sqrt()) * (1.0 if scale is None else float(scale.max()))
    return Scaling(mean.float(), torch.full_like(mean, size if size > 0 else 1.0).float())


def _in_plain_coordinates(head: FittedHead, ease: Scaling) -> FittedHead:
    """W (h - m)/s + b  =  (W/s) h + (b - W m/s)."""
    if ease.mean is None or ease.spread is None:
        return head
    weight = head.tensors["weight"] / ease.spread
    return replace(head, tensors={"weight": weight, "bias": head.tensors["bias"] - weight @ ease.mean})
