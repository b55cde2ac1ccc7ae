"""Ridge regression to one-hot targets: one eigendecomposition, and every l2 after it is one product.

    minimise  sum_i v_i |W h_i + b - e_{y_i}|² + l2 |W|²,      b free

Centring features and targets by their weighted means removes b. With the centred X (N x D) and Y (N x K),
Gram matrix XᵀX = V diag(s) Vᵀ:

    W = Yᵀ X V diag(1 / (s + l2)) Vᵀ,      b = mean(Y) - W mean(X)

The Gram matrix is D x D and is summed block by block, so N does not matter; D > N only makes s partly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.adjustment import ClassAdjustment
from probe.core.threads import free_threads
from probe.solve.basis import eigh
from probe.solve.devices import CPU, exact_home
from probe.solve.inputs import BLOCK, FeatureRows, as_l2s, as_labels, as_weights
from probe.solve.solution import linear_logits


@dataclass(frozen=True)
class RidgeHead:
    """logits = X Wᵀ + b."""

    weight: Tensor  # K x D
    bias: Tensor  # K
    l2: float
    device: torch.device = CPU  # where its scores are computed

    def logits(self, X: Any) -> Tensor:
        """N x K scores of N x D features."""
        return linear_logits(X, self.weight, self.bias, self.device)


class Ridge:
    """One data set (X: N x D, y: N labels), decomposed; `path` then gives a head for each l2 at once.

    Of the `adjustment` only the class weights mean something to a squared loss.
    """

    @free_threads()
    def __init__(
        self,
        X: Any,
        y: Any,
        num_classes: int,
        *,
        adjustment: ClassAdjustment | None = None,
        sample_weight: Any = None,
        device: torch.device | str | None = None,
    ) -> None:
        features = FeatureRows(X)
        features.refuse_non_finite()
        n, dim = features.shape
        self.device = features.device if device is None else torch.device(device)
        home = exact_home(self.device)
        labels = as_labels(y, num_classes, n, device=home)
        weight = as_weights(sample_weight, n, device=home)
        weight = torch.ones(n, dtype=torch.float64, device=home) if weight is None else weight
        if adjustment is not None and adjustment.weight is not None:
            weight = weight * adjustment.weight.to(weight)[labels]
        self.dtype, self.origin = features.dtype, features.device
        self.prior = weight.new_zeros(num_classes).index_add(0, labels, weight) / weight.sum()
        own, own_labels = features.share.mine(weight), features.share.mine(labels)
        self.mean = _weighted_sum(features, own) / weight.sum()
        gram = torch.zeros(dim, dim, dtype=torch.float64, device=home)
        cross = torch.zeros(num_classes, dim, dtype=torch.float64, device=home)
        for start, block in features.blocks(BLOCK, torch.float64, home):
            here = slice(start, start + len(block))
            centred, targets = block - self.mean, F.one_hot(own_labels[here], num_classes) - self.prior
            gram.addmm_((own[here, None] * centred).T, centred)
            cross.addmm_((own[here, None] * targets).T, centred)
        gram, cross = features.share.total(gram, cross)
        spectrum, self.vectors = features.share.agreed(*eigh(gram))
        self.spectrum, self.rotated = spectrum.clamp(min=0), cross @ self.vectors

    def path(self, l2s: Sequence[float]) -> list[RidgeHead]:
        """A head for each l2, in the order given."""
        heads = []
        for l2 in as_l2s(l2s):
            w = (self.rotated / (self.spectrum + l2)) @ self.vectors.T
            weight, bias = (t.to(self.origin).to(self.dtype) for t in (w, self.prior - w @ self.mean))
            heads.append(RidgeHead(weight, bias, l2, self.device))
        return heads


def _weighted_sum(features: FeatureRows, weight: Tensor) -> Tensor:
    """D: the sum of all rows, each times its weight."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=weight.device)
    for start, block in features.blocks(BLOCK, torch.float64, weight.device):
        total.addmv_(block.T, weight[start : start + len(block)])
    return features.share.total(total)[0]
