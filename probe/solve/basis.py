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

from probe.core.threads import free_threads
from probe.errors import UserError
from probe.solve import devices
from probe.solve.inputs import READ_AT_ONCE, FeatureRows

FEWEST_ROWS = 256  # of a block
CPU_ROWS = 1024  # with more, their logits no longer stay in the caches from product to product
LARGEST_EIGH = 4096  # beyond this side the cubic cost outweighs what the rotation saves
LOST = 1e-6  # share of the rows' squared length outside a basis beyond which it does not hold them
SMALL = 1_000_000  # N x D up to which float64 everywhere costs less than switching precision


def rows_at_once(columns: int, device: torch.device) -> int:
    """Rows in a block that come with `columns` numbers each: what a processor's caches hold.

    Never so few that the loop over blocks costs more than the products, nor more than are read at a time; and
    a power of two, as the rows of a stored shard are, because a block that reaches into the next is copied.
    """
    most, numbers = (CPU_ROWS, 2**22) if device.type == "cpu" else (READ_AT_ONCE, 2**25)
    fitting = max(FEWEST_ROWS, numbers // max(1, columns))
    return min(most, 1 << (fitting.bit_length() - 1))


def eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (ascending) and eigenvectors of a symmetric D x D matrix.

    On a CPU through NumPy, whose LAPACK takes two thirds of the time of torch's on some processors, and
    does not give up on a matrix of low rank.
    """
    if gram.device.type != "cpu":
        on_device: tuple[Tensor, Tensor] = torch.linalg.eigh(gram)
        return on_device
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

    @free_threads()
    def __init__(
        self,
        X: Any,
        *,
        device: torch.device | str | None = None,
        budget: int | None = None,
        tf32: bool = False,
    ) -> None:
        """`device` is where the passes run (default: where the features are), `budget` the bytes that rows
        and logits may take there, and `tf32` lets float32 products on NVIDIA GPUs be rounded more."""
        self.features = FeatureRows(X)
        self.share = self.features.share
        n, d = self.features.shape
        self.device = torch.device(device) if device is not None else self.features.device
        self.home = devices.exact_home(self.device)  # of all that is float64
        if n * d <= SMALL:  # float64 throughout
            self.device = self.home
        self.dtype = torch.float64 if n * d <= SMALL else torch.float32
        self.tf32 = tf32
        limit = torch.tensor(devices.budget_of(self.device) if budget is None else budget)
        self.budget = int(self.share.agreed(limit)[0])
        self.features.hold_on(self.device, self.budget)
        self._own: Tensor | None = None
        if n < d and n <= LARGEST_EIGH:
            self._factor_rows()
        else:
            self._factor_gram()

    @property
    def rank(self) -> int:
        """r, the number of directions."""
        return len(self.spectrum)

    @free_threads()
    def rotated(self, features: FeatureRows) -> Tensor | None:
        """X~ with a column of ones for the bias, N x (r + 1); None when W could leave the span.

        Kept for the basis's own rows; other rows of the same kind (a fold, a larger set) are rotated anew.
        """
        own = features.source is self.features.source and features.share == self.share
        if own and self._own is not None:
            return self._own
        rotated, lost = self._rotate(features)
        if lost > LOST and self.rank < features.shape[1]:
            return None
        if own:
            self._own = rotated
        return rotated

    def to_rotated(self, weight: Tensor, bias: Tensor) -> Tensor:
        """K x D weights and K biases as K x (r + 1) coordinates."""
        weight, bias = (t.to(device=self.home, dtype=torch.float64) for t in (weight, bias))
        inner = weight if self.vectors is None else weight @ self.vectors
        return torch.cat([inner, (bias + weight @ self.mean).unsqueeze(-1)], dim=-1)

    def from_rotated(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `to_rotated`."""
        inner, bias = theta[..., :-1].double(), theta[..., -1].double()
        weight = inner if self.vectors is None else inner @ self.vectors.T
        return weight, bias - weight @ self.mean

    def _factor_rows(self) -> None:
        X = self.share.joined(self.features.tensor(torch.float64, self.home))  # few rows: every process's
        self.mean = X.mean(dim=0)
        Q, R = torch.linalg.qr((X - self.mean).T)  # D x N, N x N
        self._check(R)
        self._set_spectrum(R @ R.T, Q)

    def _factor_gram(self) -> None:
        """One pass: blocks in float32 around a provisional centre, sums in float64."""
        n, d = self.features.shape
        diagonal = d > LARGEST_EIGH
        total = torch.zeros(d, dtype=torch.float64, device=self.home)
        gram = torch.zeros((d,) if diagonal else (d, d), dtype=torch.float64, device=self.home)
        centre: Tensor | None = None
        with devices.tf32(self.tf32):
            for _, block in self.features.blocks(rows_at_once(d, self.device), self.dtype, self.device):
                if centre is None:
                    centre = self._centre(block)
                block = block - centre
                total += devices.exact_sum(block, 0).to(total)
                product = (block * block).sum(dim=0) if diagonal else block.T @ block
                gram += product.to(self.home)
        if centre is None:  # a process without rows, where there are fewer of them than processes
            centre = self._centre(None)
        total, gram = self.share.total(total, gram)
        self._check(gram)
        offset = total / n
        self.mean = centre.to(total) + offset
        if diagonal:
            self.vectors, self.spectrum = None, (gram / n - offset**2).clamp_min(0)
        else:
            self._set_spectrum(gram - n * torch.outer(offset, offset), None)
        self.mean, self.spectrum = self.share.agreed(self.mean, self.spectrum)

    def _centre(self, block: Tensor | None) -> Tensor:
        """Of process 0's first block: all of them must sum around the same one."""
        zeros = torch.zeros(self.features.shape[1], dtype=self.dtype, device=self.device)
        return self.share.agreed(zeros if block is None else block.mean(dim=0))[0]

    def _set_spectrum(self, gram: Tensor, outer: Tensor | None) -> None:
        values, vectors = self.share.agreed(*eigh(gram))
        self.spectrum = values.clamp_min(0) / self.features.shape[0]
        self.vectors = vectors if outer is None else self.share.agreed(outer @ vectors)[0]

    def _check(self, product: Tensor) -> None:
        if not bool(product.isfinite().all()):
            self.features.refuse_non_finite()
            raise UserError("features are too large to square: standardise them first")

    def _rotate(self, features: FeatureRows) -> tuple[Tensor, float]:
        """X~ of this process's rows, and how much of all rows' squared length the basis does not hold."""
        n, here = features.share.stop - features.share.start, self.home
        rotated = torch.empty(n, self.rank + 1, dtype=self.dtype, device=here)
        mean = self.mean.to(self.dtype)
        vectors = None if self.vectors is None else self.vectors.to(self.dtype)
        lengths = torch.zeros(2, dtype=torch.float64, device=here)  # of the rows, and of what is kept
        with devices.tf32(self.tf32):
            for start, block in features.blocks(rows_at_once(self.rank, here), self.dtype, here):
                centred = block - mean
                part = rotated[start : start + len(block), :-1]
                part.copy_(centred if vectors is None else centred @ vectors)
                if self.rank < features.shape[1]:
                    lengths[0] += centred.square().sum(dtype=torch.float64)
                    lengths[1] += part.square().sum(dtype=torch.float64)
        rotated[:, -1] = 1
        if self.rank == features.shape[1]:
            return rotated, 0.0
        length, kept = features.share.total(lengths)[0].tolist()
        return rotated, 1 - kept / length if length else 0.0
