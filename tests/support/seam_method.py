"""A method that uses everything a method may have: its own networks, views, queues, a memory, a hook."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probe import losses
from probe.core import collectives
from probe.methods.base import Method
from probe.methods.memories import ClassQueue, Queue, class_places
from probe.methods.networks import MomentumCopy, Projection


class Everything(Method):
    """Cross-entropy, weighted by what is remembered of a sample; projections are pulled to queued keys."""

    views = ("own", "contrast")

    def build(self, network, labels):
        self.projection = Projection(network.head.dim, 16, 8)
        self.copy = MomentumCopy(network, self.projection, 0.9)
        self.queue = Queue(24, 8)
        counts = torch.bincount(torch.as_tensor(np.array(labels)))
        self.by_class = ClassQueue(class_places(counts, 20, 2), 8)
        self.register_buffer("memory", torch.zeros(len(labels)))  # what was seen of every sample

    def copies(self):
        return (self.copy.network,)

    def after_step(self, network):
        self.copy.follow(network, self.projection)

    def objective(self, network, batch) -> Tensor:
        scores, features = network.parts(batch.inputs, self.takes)
        queries = F.normalize(self.projection(features), dim=1)
        with torch.no_grad():
            keys = F.normalize(self.copy(batch.views[-1]), dim=1)
        values = F.cross_entropy(scores, batch.targets, reduction="none")
        index = batch.index.to(scores.device)
        queries, keys, targets, old, index = collectives.gather(
            queries, keys, batch.targets, values.detach(), index
        )
        term = sum(self.pull(queries, targets, *part.held()) for part in (self.queue, self.by_class))
        weights = 1 + self.memory[batch.index]
        if self.training:
            self.queue.push(keys, targets)
            self.by_class.push(keys, targets)
            self.memory = self.memory.index_copy(0, index, old)
        return collectives.mean(values, weights) + term

    def pull(self, queries: Tensor, targets: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
        same = (targets.unsqueeze(1) == labels.unsqueeze(0)).to(queries)
        return -(queries @ keys.T * same).sum() / same.sum().clamp(min=1)


def everything(classes: int, counts=None) -> Everything:
    return Everything(losses.make("erm", num_classes=classes, class_counts=counts))
