"""The problem that every way of fitting a head starts from, and what a fit leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import losses
from probe.core import scaling
from probe.core.class_stats import ClassStats
from probe.core.scaling import FeatureMatrix, Scaling
from probe.heads.fitted import FittedHead
from probe.losses.base import Loss
from probe.probing.settings import LossSettings
from probe.solve.basis import Basis

Features = Tensor | FeatureMatrix  # N x D: in memory, or on disk


class Scores(Protocol):
    """A linear head as a solver returns it."""

    def logits(self, X: Features) -> Tensor:
        """N x K scores of N x D features."""


@dataclass(frozen=True)
class ProbeProblem:
    """Features and labels of the training and validation rows; the same for every method of a run.

    Folds and holdouts are made of images: `rows` are what a head learns from them, and `logits` is what it
    says about them.
    """

    raw: Features  # N x D, as the backbone gave them
    y: NDArray[np.int64]  # N, in 0..K-1
    class_names: tuple[str, ...]  # K
    metric: str = "accuracy"  # what validation maximises
    scaling: Scaling = scaling.NEUTRAL
    sample_weight: NDArray[np.floating] | None = None  # N
    text: tuple[Tensor, float] | None = None  # zero-shot: K x D class embeddings, and the logit scale
    ids: Sequence[str] | None = None  # of the rows, for messages
    key: str = ""  # of all that the features were made from: the hashes of the cache entries

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def images(self) -> int:
        """n, the training and validation images."""
        return len(self.y)

    @property
    def labels(self) -> NDArray[np.int64]:
        """n: the label of each image."""
        return self.y

    def rows(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of X that belong to these images."""
        return images

    def logits(self, head: Scores, images: NDArray[np.int64]) -> Tensor:
        """m x K: what a head says about m images."""
        return head.logits(take_rows(self.X, self.rows(images)))

    def names(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of these rows, or their numbers where there are no ids."""
        return [f"row {i}" if self.ids is None else self.ids[i] for i in rows.tolist()]

    def only(self, rows: NDArray[np.int64]) -> ProbeProblem:
        """The problem of these rows, with the scaling of all of them."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return replace(
            self, raw=take_rows(self.raw, rows), y=self.y[rows], sample_weight=weight, ids=self.names(rows)
        )

    @cached_property
    def X(self) -> Features:
        """N x D, scaled: the features as the head sees them."""
        return self.scaling(self.raw) if isinstance(self.raw, Tensor) else self.scaling.lazily(self.raw)

    @cached_property
    def basis(self) -> Basis:
        """The one expensive decomposition, shared by every l2, method and fold."""
        return Basis(self.X)

    def loss(
        self, method: LossSettings, rows: NDArray[np.int64] | None = None, *, moving: bool = False
    ) -> Loss:
        """The method's loss, with the class counts and statistics of these rows only.

        Its defaults are those for statistics of the whole training set. `moving`: something in front of the
        head is trained, so statistics are left out, for a training to give and to move.
        """
        y = self.y if rows is None else self.y[rows]
        stats, spec = None, losses.info(method.name)
        params = spec.resolve(method.params, whole_set=True)
        needed = spec.needed_stats(params)
        if needed is not None and not moving:
            features = take_rows(self.X if needed.scaled else self.raw, rows)
            stats = ClassStats.from_features(features, y, self.num_classes, p=needed.p, robust=needed.robust)
        counts = np.bincount(y, minlength=self.num_classes)
        return losses.make(
            method.name, num_classes=self.num_classes, class_counts=counts, stats=stats, **params
        )


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
