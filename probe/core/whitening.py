"""Features in the coordinates in which a cosine head measures angles: centred, and of about equal variance.

The features of one network share a large common direction, and a few directions hold most of their variance:
raw, the angles between them hardly differ (mean pairwise cosine 0.85 for EfficientNet-lite0 on digits). So
they are centred and multiplied by a root of the inverse covariance, which is shrunk towards a multiple of the
identity, because its small eigenvalues are noise. The numbers come from training rows only and are stored
with the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.core.scaling import FeatureMatrix, blocks_of

# Part of the identity in the covariance. Of 0.01 to 1 (only centred), 0.3 was best or within half a point of
# it for all angular losses on held-out training images of digits and pets.
SHRINK = 0.3
SKETCH = 16_384  # rows that mean and covariance are estimated from


@dataclass(frozen=True)
class Whitening:
    """h -> A (h - mean), with A^T A the inverse of the shrunk covariance, times its mean variance."""

    mean: Tensor  # D
    matrix: Tensor  # D x D: A

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) @ self.matrix.to(features).T


def sketch(features: Tensor | FeatureMatrix, rows: int = SKETCH) -> Tensor:
    """Equally spaced rows of N x D features, in float64; all of them where they are no more."""
    n = features.shape[0]
    return features[torch.from_numpy(np.linspace(0, n - 1, min(n, rows)).astype(np.int64))].double()


def whitening(features: Tensor | FeatureMatrix, shrink: float = SHRINK) -> Whitening:
    """The whitening of N x D features. `shrink` 1 only centres them.

    A is triangular (a Cholesky factor): any other root of the same matrix differs by a rotation, which no
    angle notices, and costs more. Multiplied by the mean standard deviation, so that sizes stay about the
    same.
    """
    some = sketch(features)
    mean = some.mean(dim=0)
    identity = torch.eye(len(mean), dtype=torch.float64)
    covariance = torch.zeros_like(identity)
    for block in blocks_of(some):
        covariance += (block - mean).T @ (block - mean) / len(some)
    variance = covariance.trace() / len(mean)
    if not variance > 0:
        return Whitening(mean.float(), identity.float())
    shrunk = (1 - shrink) * covariance / variance + shrink * identity
    factor = torch.linalg.cholesky(shrunk)
    matrix = torch.linalg.solve_triangular(factor, identity, upper=False)
    return Whitening(mean.float(), matrix.float().contiguous())  # as it is saved, so that no bit changes
