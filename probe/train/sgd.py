"""Probing by gradient steps: the same problem as the exact solver's, for methods without an exact solver.

Minimises  mean_i CE-like loss + l2/(2N) |W|^2  over a head on cached features. A linear head, or an adapter
in front of one, is trained in well-conditioned coordinates, which changes the path and not the problem:
features are centred (a free bias absorbs the mean) and divided by the square root of the covariance's largest
eigenvalue, so that the curvature of cross-entropy is at most 1/2 and one learning rate suits every backbone.
A cosine head measures angles of whitened features (`probe.core.whitening`), which does change the problem:
those of raw features hardly differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe import methods
from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.scaling import NEUTRAL, FeatureMatrix, Scaling
from probe.core.whitening import Whitening
from probe.errors import UserError
from probe.heads import Adapter, AngleHead, Cosine, Head, Linear, export
from probe.heads.fitted import FittedHead
from probe.losses.adjusted import AdjustedCrossEntropy
from probe.losses.base import ClassInfo, Loss
from probe.methods.base import Method
from probe.recipe.train_settings import TrainConfig
from probe.train import final_check, frequency, optim
from probe.train.build import check, make_head, make_method
from probe.train.coordinates import class_means, conditioning_of, whiten_head
from probe.train.inputs.loaders import FeatureLoader
from probe.train.l2_search import L2Search
from probe.train.loop import Training
from probe.train.model.network import Network
from probe.train.task import Task

if TYPE_CHECKING:
    from probe.probing.problem import Fit, ProbeProblem
    from probe.probing.selection import Selector
    from probe.recipe import MethodConfig, SolverConfig

EPOCHS = 60
LR = 1.0  # half of 1 / curvature: room for the noise of batches
ADAPTER_LR = 0.5  # in the same coordinates; better than 0.1 on held-out training images of digits and pets
# Angular losses multiply cosines, and so gradients, by about 30: 0.1 undoes a start at class means.
COSINE_ADAPTER_LR = 0.03
OTHER_LR = 0.1


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
    selector: Selector | None = None,
) -> Fit:
    """A head trained by SGD on an N x D problem.

    The `held` images choose the penalty, unless a `selector` does, and, with `keep: best`, the epoch.
    `folder` is for checkpoints and the log; a killed training resumes there.
    """
    from probe.probing.problem import Fit

    settings = settings or TrainConfig()
    check(method, settings)
    if problem.sample_weight is not None:
        raise UserError("sample weights are for the exact solver; use solver lbfgs")
    if settings.augment != TrainConfig().augment:
        raise UserError("augmentation changes images, and cached features have none; fine-tune instead")
    found = frequency.crossfitted(problem, method, solver, held, _taught(problem, settings, held))
    job = SgdJob.of(problem, found, settings, held, seed)
    searched = job.head.sized and settings.weight_decay is None
    record = _l2(problem, job.config, solver, held, selector) if searched else {}
    if searched and solver.l2 is None and isinstance(job.head, Linear) and job.loss.adjustment() is None:
        record = L2Search(problem, held, selector)(job.trial, record["l2"], job.config.params)
    decay, l2 = job.decay(record.get("l2"))
    training = job.training(decay, folder, show)
    progress = training.run()
    trained = training.release()
    # A linear head starts at zero; AdamW's decay shrinks weights, and is not a term of an objective.
    penalty = decay if isinstance(job.head, Linear) and training.task.optimizer == "sgd" else 0.0
    if penalty > 0:
        record.setdefault("l2", l2)  # what a given decay stands for
    size, start = training.feed.batch_size, training.state.start
    final_check.check(trained, start, training.task.train, size=size, seed=seed, decay=penalty)
    head = job.fitted_head()
    last = progress.epochs[-1]
    record |= {"epochs": len(progress.epochs), "loss": last["loss"]}
    record |= {key: last[key] for key in ("partners",) if key in last}
    if progress.best is not None:
        record["best_epoch"] = progress.best["epoch"]
    if job.adjustment is not None and l2 > 0 and job.loss.name == job.config.name:
        weights = (head.tensors["weight"], head.tensors["bias"])
        record["gap"] = final_check.gap(  # V rows of weight 1 an image, with V l2, are the same problem
            job.X,
            job.y,
            problem.num_classes,
            job.adjustment,
            weights,
            l2=l2 * problem.views,
            basis=problem.basis,
        )
    return Fit(head, record, job.loss)


@dataclass(frozen=True)
class SgdJob:
    """A probe that is to be trained: a head and a method, on chosen rows, in coordinates that suit SGD."""

    problem: ProbeProblem
    config: MethodConfig
    settings: TrainConfig
    held: NDArray[np.int64]  # images
    seed: int
    X: Tensor | FeatureMatrix  # n x D: the rows that are trained on, as the exact solver sees them
    y: NDArray[np.int64]
    names: list[str]
    groups: Tensor | None  # of these rows, that the loss acts on; None: on the classes
    loss: Loss  # the one inside the method
    method: Method
    head: Head
    conditioning: Scaling  # of the features; see the top of this file
    whitening: Whitening | None  # of features in memory, once instead of in every batch, for the whole head
    adjustment: ClassAdjustment | None  # of a linear head and the loss; None: their problem is not convex

    @classmethod
    def of(
        cls,
        problem: ProbeProblem,
        config: MethodConfig,
        settings: TrainConfig,
        held: NDArray[np.int64],
        seed: int,
    ) -> SgdJob:
        """The job of these settings; the held images are trained on too, unless they choose an epoch."""
        kept = problem.rows(_taught(problem, settings, held))
        X, y = _part(problem, kept), problem.y[kept]
        if settings.head == "adapter":
            # Statistics start from a pass, or the first batches, and move along: those of the cached features
            # would be in other coordinates, and soon out of date.
            loss = used = inner_loss(problem, config, kept, moving=True)
        else:
            loss = inner_loss(problem, config, kept)
            used = frozen_loss(loss)
        labels = y[: len(y) // problem.views]
        method = make_method(
            config, num_classes=problem.num_classes, labels=labels, dim=X.shape[1], loss=used
        )
        head = make_head(method, settings, dim=X.shape[1], num_classes=problem.num_classes, seed=seed)
        conditioning, white, adjustment = NEUTRAL, None, None
        angles = isinstance(head.classifier, AngleHead)
        if isinstance(head, Linear | Adapter) and (settings.whiten or not angles):
            conditioning = conditioning_of(X, used.scale if isinstance(used, FrozenLoss) else None)
            adjustment = loss.adjustment() if isinstance(used, FrozenLoss) else None
        seen = conditioning(X) if isinstance(X, Tensor) else conditioning.lazily(X)
        if settings.whiten and angles:
            white = whiten_head(head, seen)
        if angles and (loss.spec.fixed_head or isinstance(head, Adapter)):
            head.start_from_means(class_means(seen, y, problem.num_classes))
        groups = None
        if problem.groups is not None and loss.grouped:
            groups = torch.from_numpy(problem.groups.of[kept % problem.images])
        built = (X, y, problem.names(kept), groups, loss, method, head, conditioning, white, adjustment)
        return cls(problem, config, settings, held, seed, *built)

    def decay(self, l2: float | None) -> tuple[float, float]:
        """The weight decay of a step, and the l2 penalty that it stands for in the exact objective.

        That is a sum of v CE, and steps see its mean, over sum v. The scores of a cosine head do not depend
        on the size of its weights, and a Gaussian's centre has a place: no penalty belongs to either, and
        their decay is that of any training.
        """
        given, spread = self.settings.weight_decay, self.conditioning.spread
        size = 1.0 if spread is None else float(spread[0])
        weight = None if self.adjustment is None else self.adjustment.weight
        mass = len(self.y) if weight is None else float(weight[torch.from_numpy(self.y)].sum())
        mass /= self.problem.views  # an image counts once
        decay = optim.DEFAULTS["sgd"].weight_decay if l2 is None else l2 / (mass * size**2)
        decay = decay if given is None else given
        return decay, decay * mass * size**2

    def training(self, decay: float, folder: Path | None, show: bool) -> Training:
        """The training with this weight decay, before its first step."""
        s, problem = self.settings, self.problem
        lr = s.lr or self._rate()
        in_memory = isinstance(self.X, Tensor)  # then features are conditioned once, not in every batch
        task = Task(
            Network(nn.Identity(), self.head, NEUTRAL if in_memory else self.conditioning),
            self.method,
            self._loader(self.X, self.y, self.names, self.groups),
            problem.num_classes,
            optimizer=s.optimizer or "sgd",
            epochs=s.epochs or EPOCHS,
            validation=self._validation() if s.selects else None,
            metric=problem.metric,
            validation_views=problem.test_rows.shape[0] // problem.images,
        )
        config, shape = self.config.model_dump_json(), self.X.shape
        versions = methods.catalogue.versions(self.config.name, self.config.params) or ""
        return Training(
            task,
            s.model_copy(update={"lr": lr, "weight_decay": decay}),
            seed=self.seed,
            folder=folder,
            digest=f"{problem.key} {config} {s.model_dump_json()} {decay} {shape} {self.seed}{versions}",
            show=show,
            device=problem.device,
            between_checkpoints=5.0,
        )

    def _rate(self) -> float:
        """The default learning rate, by the coordinates and by what is trained in them."""
        adapter = isinstance(self.head, Adapter)
        if adapter and isinstance(self.head.classifier, Cosine):
            return COSINE_ADAPTER_LR
        if self.conditioning.mean is None:
            return OTHER_LR
        return ADAPTER_LR / self.method.steepness if adapter else LR

    def trial(self, problem: ProbeProblem, l2: float) -> FittedHead:
        """The same training with this penalty on another problem, to its last epoch; it leaves no files."""
        none = np.array([], dtype=np.int64)
        settings = self.settings.model_copy(update={"keep": "last", "trackers": ()})
        job = SgdJob.of(problem, self.config, settings, none, self.seed)
        training = job.training(job.decay(l2)[0], None, show=False)
        training.run()
        training.release()
        return job.fitted_head()

    def _validation(self) -> FeatureLoader:
        from probe.probing.problem import stacked, take_rows

        problem, X = self.problem, self.problem.test_rows
        rows = stacked(self.held, problem.images, X.shape[0] // problem.images)
        return self._loader(take_rows(X, rows), problem.labels[rows % problem.images], problem.names(rows))

    def _loader(
        self,
        X: Tensor | FeatureMatrix,
        y: NDArray[np.int64],
        names: list[str],
        groups: Tensor | None = None,
    ) -> FeatureLoader:
        if isinstance(X, Tensor):
            X = self.conditioning(X) if self.whitening is None else self.whitening(X)
        return FeatureLoader(X, y, names, groups)

    def fitted_head(self) -> FittedHead:
        """The trained head in the problem's coordinates."""
        if self.whitening is not None and isinstance(self.head, AngleHead):
            self.head.whiten(self.whitening)
        return export.unconditioned(export.fitted(self.head, self.problem.head_scaling), self.conditioning)


def inner_loss(
    problem: ProbeProblem, method: MethodConfig, rows: NDArray[np.int64], *, moving: bool = False
) -> Loss:
    """The loss inside the method, with the exact statistics of these rows, or with `moving` ones."""
    from probe.probing.settings import LossChoice

    return problem.loss(
        LossChoice(*methods.catalogue.given_to(method.name, method.params)[1]), rows, moving=moving
    )


class FrozenLoss(AdjustedCrossEntropy):
    """A loss as its adjustment: on frozen features that is all of it, because representation terms are
    constants. It leaves out the input checks of a loss: a step takes a millisecond here."""

    def __init__(self, loss: Loss, declared: ClassAdjustment) -> None:
        parts = (declared.scale, declared.shift, declared.weight)
        single = ClassAdjustment(*(None if part is None else part.float() for part in parts))
        super().__init__(ClassInfo(loss.spec, loss.num_classes, None, None), single)

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        if collectives.processes() == 1 and self.class_weights is None:
            return self.adjustment().cross_entropy(logits, targets)
        return self.weighted_mean(*self.losses(logits, targets), targets)


def frozen_loss(loss: Loss) -> Loss:
    """The loss as its adjustment, where it has one that does not change during training; else itself."""
    declared = loss.adjustment() if loss.constant_adjustment else None
    return loss if declared is None else FrozenLoss(loss, declared)


def _l2(
    problem: ProbeProblem,
    method: MethodConfig,
    solver: SolverConfig,
    held: NDArray[np.int64],
    selector: Selector | None,
) -> dict[str, Any]:
    """The given penalty, or the one that validates best with the exact solver: with the method's
    adjustment or, where it has none, with plain cross-entropy, which is where a search of its own begins."""
    from probe import methods
    from probe.probing.crossfit import PLAIN
    from probe.probing.select_l2 import LogisticPath, select_l2
    from probe.probing.settings import ExactSolver, LossChoice

    if selector is not None and solver.l2 is None:
        loss = LossChoice(*methods.catalogue.resolve(method.name, method.params)[1])
        convex = problem.loss(loss).adjustment() is not None
        return selector.choose([loss if convex else PLAIN], ExactSolver(grid=solver.grid)).record
    path = LogisticPath(problem, lambda rows: inner_loss(problem, method, rows))
    return select_l2(problem, solver, held, path)


def _taught(problem: ProbeProblem, settings: TrainConfig, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """The images that are trained on: all of them, unless the held ones choose an epoch."""
    everything = np.arange(problem.images)
    return np.setdiff1d(everything, held) if settings.selects else everything


def _part(problem: ProbeProblem, rows: NDArray[np.int64]) -> Tensor | FeatureMatrix:
    """The chosen rows as the head sees them; not copied where those are all rows."""
    from probe.probing.problem import take_rows

    return problem.X if len(rows) == len(problem.y) else take_rows(problem.X, rows)
