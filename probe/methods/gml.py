"""Class likelihoods from queued keys, beside the balanced softmax (Suh and Seo 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from probe.core import collectives
from probe.errors import UserError
from probe.losses.base import Loss
from probe.losses.functional import gml_contrast
from probe.methods.base import Method
from probe.methods.memories import ClassQueue, class_places
from probe.methods.networks import MomentumCopy, Projection
from probe.methods.protocols import BatchLike, NetworkLike, TeacherLike

COOLEST = 0.01  # temperature (ours): where classes are told apart at once, nothing else would hold it up


class GML(Method):
    """supervised * loss + contrast * [G(T constant) + G(keys, queries constant; own left out)] + distil * KD

    G is `functional.gml_contrast` over the queue and the batch's own keys. T starts at `temperature` and is
    learned, by the second G alone, which trains nothing else; the first G trains the network with it. The
    first view is classified and is the query; the second is the key. Without a teacher keys are projections
    of a momentum copy. With one they are its features, which a projection of their own embeds anew at every
    step, queue included, and KD pulls the classifier's logits towards the teacher's (Kullback-Leibler
    divergence at a temperature, times its square).
    """

    views = ("own", "own")
    head: Literal["cosine"] = "cosine"

    def __init__(
        self,
        loss: Loss,
        *,
        counts: Any,
        supervised: float,
        contrast: float,
        temperature: float,
        queue: int,
        least: int,
        hidden: int,
        embedding: int,
        momentum: float,
        teacher: str | None,
        distil: float,
        distil_temperature: float,
    ) -> None:
        super().__init__(loss)
        self.counts = torch.as_tensor(counts).double().clamp(min=1)
        self.supervised, self.contrast, self.temperature = supervised, contrast, temperature
        self.size, self.least, self.hidden, self.embedding = queue, least, hidden, embedding
        self.momentum, self.teacher = momentum, teacher
        self.distil, self.distil_temperature = distil, distil_temperature
        self._taught: TeacherLike | None = None  # not a part of the state: it is given again

    def taught_by(self, teacher: TeacherLike) -> None:
        object.__setattr__(self, "_taught", teacher)  # even if it is a module, none of this one

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        if self.teacher is not None and self._taught is None:
            raise UserError("a teacher sees images, and cached features have none; use --finetune")
        self.projection = Projection(network.head.dim, self.hidden, self.embedding)
        if self._taught is None:
            self.copy = MomentumCopy(network, self.projection, self.momentum)
            stored = self.embedding
        else:
            self.keys = Projection(self._taught.dim, self.hidden, self.embedding)
            stored = self._taught.dim
        size = max(self.size, self.least * len(self.counts))
        self.queue = ClassQueue(class_places(self.counts, size, self.least), stored)
        # one element, not none: FSDP cannot split a tensor without dimensions
        self.log_temperature = nn.Parameter(torch.tensor([math.log(self.temperature)]))

    def copies(self) -> Sequence[nn.Module]:
        return () if self._taught is not None else (self.copy.network,)

    def after_step(self, network: NetworkLike) -> None:
        if self._taught is None:
            self.copy.follow(network, self.projection)
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(min(COOLEST, self.temperature)))

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        scores, features = network.parts(batch.inputs, self.takes)
        value = self.supervised * self.loss(scores, batch.targets, features)
        stored = self.copy(batch.views[-1]) if self._taught is None else self._taught(batch.views[-1])[0]
        value = value + self.contrast * self._contrasts(self.projection(features), stored, batch.targets)
        if self._taught is not None and self.distil:
            logits = network.head.plain().settings["scale"] * scores if self.takes == "cosines" else scores
            value = value + self.distil * self._distillation(logits, self._taught(batch.inputs)[1])
        return value

    def _contrasts(self, queries: Tensor, stored: Tensor, targets: Tensor) -> Tensor:
        """Both, of the joined batch: n x dim queries, and n keys as they are stored."""
        with torch.autocast(queries.device.type, enabled=False):
            queries, stored, targets = collectives.gather(queries.float(), stored.float(), targets)
            old, labels = self.queue.held()
            keys, labels = torch.cat([stored, old]), torch.cat([targets, labels])
            if self._taught is not None:
                with collectives.apart():  # every process has all of them
                    keys = self.keys(keys)
            if self.training:
                self.queue.push(stored, targets)
            learned, own = self.log_temperature.exp(), torch.arange(len(queries), device=queries.device)
            known = (labels, self.counts)
            first = gml_contrast(queries, targets, keys, *known, temperature=learned.detach())
            constant = (queries.detach(), targets, keys.detach())
            return first + gml_contrast(*constant, *known, temperature=learned, own=own)

    def _distillation(self, logits: Tensor, taught: Tensor) -> Tensor:
        t = self.distil_temperature
        log_p, log_q = F.log_softmax(logits.float() / t, 1), F.log_softmax(taught.float() / t, 1)
        return t**2 * collectives.mean((log_q.exp() * (log_q - log_p)).sum(1))
