"""One eigendecomposition that every problem on the same features shares.

    X - 1 m^T = X~ V^T,      X~^T X~ = diag(N lambda)

with X: N x D, m: the column means, V: D x r orthonormal, r = min(N, D). The multinomial Hessian at weights
W is about (sum_i v_i a_i² p_ik (1 - p_ik)) lambda_j + l2 for class k and rotated direction j: diagonal, so
in these coordinates a diagonal preconditioner sees every correlation between features, for any l2, method
or fold. Centring is exact, not an approximation: the bias is not penalised, so it absorbs W m.

Two ways to get there: N >= D takes the D x D Gram matrix; D > N factors X^T = Q R first, because W never
leaves the span of the rows (representer theorem) and R is only N x N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.errors import UserError
from probe.solve.inputs import FeatureRows

BUDGET = 4 * 2**30  # bytes of features and logits kept in memory; beyond it, blocks are streamed
LARGEST_EIGH = 4096  # beyond this side the cubic cost outweighs what the rotation saves
SMALL = 1_000_000  # N x D up to which float64 everywhere costs less than switching precision


def rows_at_once(columns: int, device: torch.device) -> int:
    """Rows in a block that come with `columns` numbers each: 8 MB of float64 stay in a CPU's cache."""
    numbers = 2**20 if device.type == "cpu" else 2**25
    return max(256, min(65536, numbers // max(1, columns)))


def eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """On a CPU through NumPy, whose LAPACK takes two thirds of the time of torch's on some processors, and
    does not give up on a matrix of low rank."""
    if gram.device.type != "cpu":
        return torch.linalg.eigh(gram)
    values, vectors = np.linalg.eigh(gram.numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors)


class Basis:
    """Centre, rotation and spectrum of a feature matrix; build it once, pass it to every solve.

    >>> basis = Basis(X)
    >>> erm = fit(X, y, 37, l2=1.0, basis=basis)
    >>> margin = fit(X, y, 37, l2=1.0, adjustment=mr2.adjustment(), basis=basis)
    """

    mean: Tensor  # D, float64
    spectrum: Tensor  # r, float64: variance of the rows along each direction
    vectors: Tensor | None  # D x r, float64; None: no rotation (too many dimensions)

    def __init__(self, X: Any, *, device: torch.device | str | None = None, budget: int = BUDGET) -> None:
        self.features = FeatureRows(X)
        self.device = torch.device(device) if device is not None else self.features.device
        self.budget = budget
        n, d = self.features.shape
        self.dtype = torch.float64 if n * d <= SMALL else torch.float32
        self._own: Tensor | None = None
        if n < d and n <= LARGEST_EIGH:
            self._factor_rows()
        else:
            self._factor_gram()

    @property
    def rank(self) -> int:
        return len(self.spectrum)

    def rotated(self, features: FeatureRows) -> Tensor | None:
        """X~ with a column of ones for the bias, N x (r + 1); None when W could leave the span.

        Kept for the basis's own rows; other rows of the same kind (a fold, a larger set) are rotated anew.
        """
        own = features.source is self.features.source
        if own and self._own is not None:
            return self._own
        rotated, lost = self._rotate(features)
        if lost > 1e-6 and self.rank < features.shape[1]:
            return None
        if own:
            self._own = rotated
        return rotated

    def to_rotated(self, weight: Tensor, bias: Tensor) -> Tensor:
        """K x D weights and K biases as K x (r + 1) coordinates."""
        weight, bias = (t.to(device=self.device, dtype=torch.float64) for t in (weight, bias))
        inner = weight if self.vectors is None else weight @ self.vectors
        return torch.cat([inner, (bias + weight @ self.mean).unsqueeze(-1)], dim=-1)

    def from_rotated(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `to_rotated`."""
        inner, bias = theta[..., :-1].double(), theta[..., -1].double()
        weight = inner if self.vectors is None else inner @ self.vectors.T
        return weight, bias - weight @ self.mean

    def _factor_rows(self) -> None:
        X = self.features.tensor(torch.float64, self.device)
        self.mean = X.mean(dim=0)
        Q, R = torch.linalg.qr((X - self.mean).T)  # D x N, N x N
        self._check(R)
        self._set_spectrum(R @ R.T, Q)

    def _factor_gram(self) -> None:
        """One pass: blocks in float32 around a provisional centre, sums in float64."""
        n, d = self.features.shape
        total = torch.zeros(d, dtype=torch.float64, device=self.device)
        gram: Tensor | None = None
        diagonal = d > LARGEST_EIGH
        centre: Tensor | None = None
        for _, block in self.features.blocks(rows_at_once(d, self.device), self.dtype, self.device):
            if centre is None:
                centre = block.mean(dim=0)
            block = block - centre
            total += block.sum(dim=0, dtype=torch.float64)
            product = (block * block).sum(dim=0) if diagonal else block.T @ block
            gram = product.double() if gram is None else gram.add_(product)
        assert gram is not None  # Features are never empty
        assert centre is not None
        self._check(gram)
        offset = total / n
        self.mean = centre.double() + offset
        if diagonal:
            self.vectors, self.spectrum = None, (gram / n - offset**2).clamp_min(0)
        else:
            self._set_spectrum(gram - n * torch.outer(offset, offset), None)

    def _set_spectrum(self, gram: Tensor, outer: Tensor | None) -> None:
        values, vectors = eigh(gram)
        self.spectrum = values.clamp_min(0) / self.features.shape[0]
        self.vectors = vectors if outer is None else outer @ vectors

    def _check(self, product: Tensor) -> None:
        if not bool(product.isfinite().all()):
            self.features.refuse_non_finite()
            raise UserError("features are too large to square: standardise them first")

    def _rotate(self, features: FeatureRows) -> tuple[Tensor, float]:
        """X~, and the share of the rows' squared length that the basis does not hold."""
        n = features.shape[0]
        rotated = torch.empty(n, self.rank + 1, dtype=self.dtype, device=self.device)
        mean = self.mean.to(self.dtype)
        vectors = None if self.vectors is None else self.vectors.to(self.dtype)
        length = kept = 0.0
        for start, block in features.blocks(rows_at_once(self.rank, self.device), self.dtype, self.device):
            centred = block - mean
            part = rotated[start : start + len(block), :-1]
            part.copy_(centred if vectors is None else centred @ vectors)
            if self.rank < features.shape[1]:
                length += float(centred.square().sum(dtype=torch.float64))
                kept += float(part.square().sum(dtype=torch.float64))
        rotated[:, -1] = 1
        return rotated, 1 - kept / length if length else 0.0
