"""Parametric contrastive learning: labels and keys in one softmax (Cui et al. 2021, 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from probe.core import collectives
from probe.losses.base import Loss
from probe.losses.functional.contrast import parametric_contrast
from probe.methods.base import Method
from probe.methods.memories import Queue
from probe.methods.networks import MomentumCopy, Projection, gather_views, joined
from probe.methods.protocols import BatchLike, NetworkLike

ALPHA = 0.05  # weight of a key, as published for ImageNet
KEYS_TO_LABEL = 0.5  # of a class of mean size: about the published proportion on ImageNet, 9 keys of 0.05


class _Parametric(Method):
    """What PaCo and GPaCo share: a queue of past keys, and the softmax over classes and keys."""

    queue: Queue
    views = ("own", "contrast")
    smoothing = 0.0  # part of the label's weight that the other classes share

    def __init__(
        self,
        loss: Loss,
        *,
        counts: Any,
        alpha: float | None,
        beta: float,
        gamma: float,
        temperature: float,
        queue: int,
        hidden: int,
        embedding: int,
        prior: bool,
    ) -> None:
        super().__init__(loss)
        self.counts = counts if prior else None
        self.alpha, self.beta, self.gamma, self.temperature = alpha, beta, gamma, temperature
        self.size, self.hidden, self.embedding = queue, hidden, embedding

    def key_weight(self, keys: int, classes: int) -> float:
        """alpha among so many keys. Where none is given, a class's keys together weigh at most half a label:
        with 1,536 keys of 10 classes a fixed 0.05 would leave the label an eighth of the weight."""
        if self.alpha is not None:
            return self.alpha
        return min(ALPHA, KEYS_TO_LABEL * self.beta * classes / max(1, keys))

    def softmax(self, logits: Tensor, targets: Tensor, queries: Tensor, keys: Tensor | None) -> Tensor:
        """The loss of m x K logits and m x dim queries of the joined batch, against the queries themselves
        (each but its own), further `keys` with the same labels, and the queue."""
        old, labels = self.queue.held()
        against = torch.cat([queries, old] if keys is None else [queries, keys, old])
        labels = torch.cat([targets, labels] if keys is None else [targets, targets, labels])
        return parametric_contrast(
            logits,
            targets,
            queries @ against.T / self.temperature,
            labels,
            self.counts,
            alpha=self.key_weight(len(against), logits.shape[1]),
            beta=self.beta,
            gamma=self.gamma,
            own=torch.arange(len(queries), device=queries.device),
            smoothing=self.smoothing,
        )


class PaCo(_Parametric):
    """The first view is classified and is a query; a momentum copy makes a key of the second view.

    The queries of the batch are keys too, with their gradient, as released.
    """

    def __init__(self, loss: Loss, *, momentum: float, **settings: Any) -> None:
        super().__init__(loss, **settings)
        self.momentum = momentum

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.projection = Projection(network.head.dim, self.hidden, self.embedding)
        self.copy = MomentumCopy(network, self.projection, self.momentum)
        self.queue = Queue(self.size, self.embedding)

    def copies(self) -> Sequence[nn.Module]:
        return (self.copy.network,)

    def after_step(self, network: NetworkLike) -> None:
        self.copy.follow(network, self.projection)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        logits, features = network.parts(batch.inputs, "logits")
        rows = (logits, self.projection(features), self.copy(batch.views[-1]))
        with torch.autocast(logits.device.type, enabled=False):
            logits, queries, keys, targets = collectives.gather(*map(Tensor.float, rows), batch.targets)
            queries, keys = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
            value = self.softmax(logits, targets, queries, keys)
            if self.training:
                self.queue.push(keys, targets)
        return value


class GPaCo(_Parametric):
    """Both views go through the network, are classified, and are queries and keys; there is no copy."""

    def __init__(self, loss: Loss, *, smoothing: float, **settings: Any) -> None:
        super().__init__(loss, **settings)
        self.smoothing = smoothing

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.projection = Projection(network.head.dim, self.hidden, self.embedding, layers=2, norm=False)
        self.queue = Queue(self.size, self.embedding)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        views = len(batch.views)
        logits, features = network.parts(joined(batch.views), "logits")
        rows = (logits.float(), self.projection(features).float(), batch.targets.repeat(views))
        with torch.autocast(logits.device.type, enabled=False):
            logits, projected, targets = gather_views(views, *rows)
            queries = F.normalize(projected, dim=1)
            value = self.softmax(logits, targets, queries, None)
            if self.training:
                last = len(targets) // views
                self.queue.push(queries[-last:].detach(), targets[-last:])
        return value
