"""Ridge regression to one-hot targets: one eigendecomposition, and every strength after it is one product.

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
from probe.solve.basis import eigh
from probe.solve.inputs import FeatureRows, as_l2s, as_labels, as_weights

BLOCK = 16_384


@dataclass(frozen=True)
class RidgeHead:
    """logits = X Wᵀ + b."""

    weight: Tensor  # K x D
    bias: Tensor  # K
    l2: float

    def logits(self, X: Any) -> Tensor:
        blocks = FeatureRows(X).blocks(BLOCK, self.weight.dtype, self.weight.device)
        return torch.cat([torch.addmm(self.bias, block, self.weight.T) for _, block in blocks])


class Ridge:
    """One data set, decomposed; `path` then gives a head for each strength at once.

    Of the `adjustment` only the class weights mean something to a squared loss.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        num_classes: int,
        *,
        adjustment: ClassAdjustment | None = None,
        sample_weight: Any = None,
    ) -> None:
        features = FeatureRows(X)
        features.refuse_non_finite()
        n, dim = features.shape
        labels = as_labels(y, num_classes, n)
        weight = as_weights(sample_weight, n)
        weight = torch.ones(n, dtype=torch.float64) if weight is None else weight
        if adjustment is not None and adjustment.weight is not None:
            weight = weight * adjustment.weight.to(weight)[labels]
        self.dtype = features.dtype
        self.prior = torch.bincount(labels, weight, minlength=num_classes) / weight.sum()
        self.mean = _weighted_sum(features, weight[:, None])[0] / weight.sum()
        gram, cross = torch.zeros(dim, dim).double(), torch.zeros(num_classes, dim).double()
        for start, block in features.blocks(BLOCK, torch.float64, torch.device("cpu")):
            here = slice(start, start + len(block))
            centred, targets = block - self.mean, F.one_hot(labels[here], num_classes) - self.prior
            gram.addmm_((weight[here, None] * centred).T, centred)
            cross.addmm_((weight[here, None] * targets).T, centred)
        spectrum, self.vectors = eigh(gram)
        self.spectrum, self.rotated = spectrum.clamp(min=0), cross @ self.vectors

    def path(self, l2s: Sequence[float]) -> list[RidgeHead]:
        heads = []
        for l2 in as_l2s(l2s):
            w = (self.rotated / (self.spectrum + l2)) @ self.vectors.T
            heads.append(RidgeHead(w.to(self.dtype), (self.prior - w @ self.mean).to(self.dtype), l2))
        return heads


def _weighted_sum(features: FeatureRows, weight: Tensor) -> Tensor:
    total = torch.zeros(weight.shape[1], features.shape[1]).double()
    for start, block in features.blocks(BLOCK, torch.float64, torch.device("cpu")):
        total.addmm_(weight[start : start + len(block)].T, block)
    return total
