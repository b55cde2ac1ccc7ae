"""The problem that every way of fitting a head starts from, and what a fit leaves."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import losses
from probe.core.class_stats import ClassStats
from probe.core.row_share import RowShare
from probe.core.scaling import NEUTRAL, FeatureMatrix, Scaling
from probe.heads.fitted import FittedHead
from probe.losses.base import Loss
from probe.probing.settings import LossSettings
from probe.solve.basis import Basis
from probe.solve.solution import LinearSolution

if TYPE_CHECKING:
    from probe.data.attribute import SampleGroups

Features = Tensor | FeatureMatrix  # N x D: in memory, or on disk


class Scores(Protocol):
    """A linear head as a solver returns it."""

    def logits(self, X: Features) -> Tensor:
        """N x K scores of N x D features."""


@dataclass(frozen=True)
class ProbeProblem:
    """Features and labels of the training and validation images; the same for every method of a run.

    Folds and holdouts are made of images: `rows` are what a head learns from them, and `logits` is what it
    says about them. Of an image with V views a head learns V rows of weight 1/V, so that it counts once; the
    rows of all images are stacked view by view, the evaluation crops first.
    """

    raw: Features  # N x D, as the backbone gave them (parts side by side: balanced); N = V n
    y: NDArray[np.int64]  # N, in 0..K-1
    class_names: tuple[str, ...]  # K
    metric: str = "accuracy"  # what validation maximises
    scaling: Scaling = NEUTRAL
    sample_weight: NDArray[np.floating] | None = None  # N
    text: tuple[Tensor, float] | None = None  # zero-shot: K x D class embeddings, and the logit scale
    ids: Sequence[str] | None = None  # of the n images, for messages
    key: str = ""  # of all that the features were made from: the hashes of the cache entries
    views: int = 1  # V
    # T n x D: the views that predictions are averaged over, stacked alike; None: those that are learnt from
    tested: Features | None = None
    balance: Scaling = NEUTRAL  # that parts side by side have been given equal variance by
    groups: SampleGroups | None = None  # of the n images, that the method acts on; None: on the classes
    device: torch.device | None = None  # of the exact solvers' passes; None: where the features are
    tf32: bool = False  # may float32 products there be rounded to TF32?

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def images(self) -> int:
        """n, the training and validation images."""
        return len(self.y) // self.views

    @property
    def labels(self) -> NDArray[np.int64]:
        """n: the label of each image."""
        return self.y[: self.images]

    def rows(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of X that belong to these images, view by view."""
        return stacked(images, self.images, self.views)

    def weights(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.floating] | None:
        """What these rows (None: all) count for: an image's views share its weight; None: 1 each."""
        if self.views == 1 and self.sample_weight is None:
            return None
        weight = np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight
        return (weight if rows is None else weight[rows]) / self.views

    def logits(self, head: Scores, images: NDArray[np.int64]) -> Tensor:
        """m x K: what a head says about m images, averaged over the views that predictions are made of."""
        views = self.test_rows.shape[0] // self.images
        scores = head.logits(take_rows(self.test_rows, stacked(images, self.images, views)))
        return scores if views == 1 else scores.view(views, len(images), -1).mean(dim=0)

    def names(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of these rows' images, or their numbers where there are no ids."""
        images = (rows % self.images).tolist()
        return [f"row {i}" if self.ids is None else self.ids[i] for i in images]

    def only(self, images: NDArray[np.int64]) -> ProbeProblem:
        """The problem of these images, with the scaling of all of them."""
        rows, tested = self.rows(images), self.tested
        if tested is not None:
            views = tested.shape[0] // self.images
            tested = take_rows(tested, stacked(images, self.images, views))
        return replace(
            self,
            raw=take_rows(self.raw, rows),
            y=self.y[rows],
            sample_weight=None if self.sample_weight is None else self.sample_weight[rows],
            ids=self.names(images),
            tested=tested,
            groups=None if self.groups is None else self.groups.only(images),
        )

    def weighted(self, weight: NDArray[np.floating]) -> ProbeProblem:
        """The same problem where each of the n images counts `weight` times as much; nothing is copied."""
        rows = np.tile(weight, self.views)
        made = replace(self, sample_weight=rows if self.sample_weight is None else self.sample_weight * rows)
        made.__dict__.update({name: getattr(self, name) for name in ("X", "test_rows", "basis")})
        return made

    def copied(self) -> ProbeProblem:
        """The same problem, with everything that was made and solved for it, for others to solve more of."""
        made = copy(self)
        made.__dict__["solved"] = {name: dict(heads) for name, heads in self.solved.items()}
        return made

    @cached_property
    def solved(self) -> dict[str, dict[float, tuple[LinearSolution, Loss]]]:
        """Heads of all rows, by method and l2: seeds differ in what validates, and often choose the same."""
        return {}

    @property
    def head_scaling(self) -> Scaling:
        """From what the backbones give to what a head sees, as it is saved with the head."""
        return self.balance.then(self.scaling)

    @cached_property
    def X(self) -> Features:
        """N x D, scaled: the features as the head sees them."""
        return self._scaled(self.raw)

    @cached_property
    def test_rows(self) -> Features:
        """T n x D, scaled: what predictions are averaged over."""
        return self.X if self.tested is None else self._scaled(self.tested)

    @property
    def crops(self) -> Features:
        """n x D, scaled: the evaluation crop of each image."""
        if self.views == 1:
            return self.X
        return self.X[: self.images] if isinstance(self.X, Tensor) else self.X.view(np.arange(self.images))

    def _scaled(self, raw: Features) -> Features:
        return self.scaling(raw) if isinstance(raw, Tensor) else self.scaling.lazily(raw)

    @cached_property
    def basis(self) -> Basis:
        """The one expensive decomposition, shared by every l2, method and fold."""
        return Basis(self.X, device=self.device, tf32=self.tf32)

    def class_stats(
        self, features: Features, rows: NDArray[np.int64] | None, p: float = 2.0, *, robust: bool = False
    ) -> ClassStats:
        """Statistics of these rows (None: all), of which each process of a world reads its share."""
        chosen = np.arange(len(self.y)) if rows is None else rows
        share = RowShare.of(len(chosen))
        if share.size == 1:
            mine, y = take_rows(features, rows), self.y[chosen]
        else:
            mine, y = take_rows(features, share.mine(chosen)), self.y[share.mine(chosen)]
        return ClassStats.from_features(
            mine, y, self.num_classes, p=p, robust=robust, across_processes=share.size > 1
        )

    def loss(
        self, method: LossSettings, rows: NDArray[np.int64] | None = None, *, moving: bool = False
    ) -> Loss:
        """The method's loss, with the class counts (of images) and the statistics of these rows only.

        Its defaults are those for statistics of the whole training set. `moving`: something in front of the
        head is trained, so statistics are left out, for a training to give and to move.
        """
        y = self.y if rows is None else self.y[rows]
        stats, spec = None, losses.info(method.name)
        params = spec.resolve(method.params, whole_set=True)
        needed = spec.needed_stats(params)
        if needed is not None and not moving:
            features = self.X if needed.scaled else self.raw
            stats = self.class_stats(features, rows, needed.p, robust=needed.robust)
            stats = replace(stats, count=stats.count / self.views)
        counts = np.bincount(y, minlength=self.num_classes) // self.views
        return losses.make(
            method.name,
            num_classes=self.num_classes,
            class_counts=counts,
            stats=stats,
            group_counts=self.groups.counts(self._images_of(rows)) if self.groups and spec.groups else None,
            **params,
        )

    def _images_of(self, rows: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        return None if rows is None else np.unique(rows % self.images)


def stacked(images: NDArray[np.int64], of: int, views: int) -> NDArray[np.int64]:
    """The rows of these images, where the rows of all `of` images are stacked view by view."""
    return images if views == 1 else (images + of * np.arange(views)[:, None]).ravel()


def take_rows(features: Features, rows: NDArray[np.int64] | None) -> Features:
    """Some rows, or all for None: copied if the features are in memory, a view if they are on disk."""
    if rows is None:
        return features
    return features[torch.from_numpy(rows)] if isinstance(features, Tensor) else features.view(rows)


@dataclass(frozen=True)
class Fit:
    """A trained head, and what is worth recording about its training."""

    head: FittedHead
    record: dict[str, Any] = field(default_factory=dict)  # plain values, for result.json
    loss: Loss | None = None  # the loss that was minimised, with its margins and remarks
    first: FittedHead | None = None  # what a second stage started from, where that is a head
    remarks: tuple[str, ...] = ()  # what a reader of its numbers must know, one line each
    solution: LinearSolution | None = None  # where others of the same features may begin
