"""Balanced contrastive learning: every class counts once in the contrast (Zhu et al. 2022)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core import collectives
from probe.losses import functional
from probe.losses.base import Loss
from probe.methods.base import Method
from probe.methods.networks import Projection, class_vectors, joined
from probe.methods.protocols import BatchLike, NetworkLike


class BCL(Method):
    """supervised * loss(first view) + contrast * SCL(projections of two further views, class centres)

    SCL is `functional.bcl_contrast`; the centres are a second projection, of the classifier's weights. All
    views go through the network in one pass. Cached features have one view, which then stands for all three.
    """

    views = ("own", "contrast", "contrast")
    head: Literal["cosine"] = "cosine"

    def __init__(
        self,
        loss: Loss,
        *,
        supervised: float,
        contrast: float,
        temperature: float,
        hidden: int,
        embedding: int,
    ) -> None:
        super().__init__(loss)
        self.supervised, self.contrast, self.temperature = supervised, contrast, temperature
        self.hidden, self.embedding = hidden, embedding
        # Similarities are divided by the temperature, and so are rates: at that of cross-entropy an adapter's
        # loss stays at 0.3, at a fifth of it 0.04 (1,000 images of CIFAR-100).
        self.steepness = max(1.0, contrast / temperature)

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.projection = Projection(network.head.dim, self.hidden, self.embedding)
        self.centres = Projection(network.head.dim, self.hidden, self.embedding)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        n = len(batch)
        scores, features = network.parts(joined(batch.views), self.takes)
        loss = self.loss(scores[:n], batch.targets, features[:n])
        projected = self.projection(features[n:] if len(batch.views) > 1 else features)
        first, second = projected[:n], projected[-n:]  # the same where there is one view
        with collectives.apart():  # every process has all of the classifier's weights
            centres = self.centres(class_vectors(network))
        with torch.autocast(scores.device.type, enabled=False):
            first, second, targets = collectives.gather(first.float(), second.float(), batch.targets)
            contrast = functional.bcl_contrast(
                torch.cat([first, second]), targets, centres.float(), temperature=self.temperature
            )
        return self.supervised * loss + self.contrast * contrast
