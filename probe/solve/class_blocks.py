"""A preconditioner that knows which rows bend which class.

    H_k = sum_i w_ik h_i h_i^T + l2,    w_ik = v_i a_i² p_ik (1 - p_ik)

is the block of class k in the Hessian. The basis has one diagonal for all classes, as if every row bent
every class alike. Near the optimum a class is bent by few rows, its own difficult ones and those that look
like it: the m rows with the largest w_ik enter the block as they are (U_k, m x (r + 1), each times the root
of its weight), the curvature of all others by the diagonal D_k, and Woodbury's identity inverts the sum:

    (D + U^T U)^-1 = D^-1/2 (1 - W^T W) D^-1/2,    W = L^-1 V,  L L^T = 1 + V V^T,  V = U D^-1/2

In this form float32 keeps it positive definite: (1 + V V^T)^-1 as a matrix does not, from |V|² = 1e4 on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probe.core.row_share import RowShare
from probe.solve.certificate import LEAST_CURVATURE, hessian_diagonal, sum_zero
from probe.solve.objective import Hessian

MOST = 256  # rows of a block
FRACTION = 25  # and one in so many of all rows, at most: a product with the blocks is then part of a pass
OVERLAP = 8  # times that a row may stand in blocks, on average
AT_ONCE = 2**24  # numbers of the blocks that are made at once


@dataclass(frozen=True)
class ClassBlocks:
    """The inverse of D + U^T U for every class, to be multiplied with."""

    root: Tensor  # K x (r + 1), D^-1/2
    rows: Tensor  # K x m x (r + 1), W

    @classmethod
    def of(cls, hessian: Hessian, spectrum: Tensor, size: int) -> ClassBlocks:
        """Blocks of `size` rows; `spectrum` are the variances of the r directions and the bias."""
        weights = hessian.by_row()
        total = hessian.share.total(weights.sum(dim=1, dtype=torch.float64))[0]
        weight, rows = _heaviest(hessian.rows, weights, size, hessian.share)
        l2 = torch.tensor([hessian.l2], dtype=total.dtype, device=total.device)
        others = torch.maximum(total - weight.sum(dim=1, dtype=torch.float64), LEAST_CURVATURE * total)
        root = hessian_diagonal(others[None], spectrum, l2)[0].rsqrt()
        rows *= weight.sqrt().unsqueeze(-1)
        rows *= root.unsqueeze(1)
        step = max(1, AT_ONCE // rows[0].numel())
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            rows[some] = _divided(rows[some])
        return cls(root, rows)

    def solve(self, gradient: Tensor) -> Tensor:
        """The preconditioned gradient (K x (r + 1))."""
        q = gradient * self.root
        inner = torch.bmm(q.unsqueeze(1), self.rows.mT)  # vectors on the left: many times faster on CPUs
        return sum_zero(self.root * (q - torch.bmm(inner, self.rows).squeeze(1)))


def _divided(V: Tensor) -> Tensor:
    """W of some classes; 0 where rounding spoilt the factor, which leaves a class the diagonal alone."""
    inner = torch.bmm(V, V.mT)
    inner.diagonal(dim1=1, dim2=2).add_(1)
    factor, failed = torch.linalg.cholesky_ex(inner)
    good = (failed == 0).view(-1, 1, 1)
    identity = torch.eye(inner.shape[1], dtype=inner.dtype, device=inner.device)
    return torch.where(
        good, torch.linalg.solve_triangular(torch.where(good, factor, identity), V, upper=False), 0
    )


def block_size(rows: int, classes: int, most: int) -> int:
    """Rows in a block of each class, of so many rows; there is memory for `most`."""
    return min(MOST, rows // FRACTION, OVERLAP * rows // classes, most)


def _heaviest(rows: Tensor, weights: Tensor, size: int, share: RowShare) -> tuple[Tensor, Tensor]:
    """The largest weights of each class (K x m), and their rows (K x m x (r + 1)); of all processes' rows."""
    own, index = weights.topk(min(size, weights.shape[1]), dim=1)
    if share.size == 1:
        return own, rows[index]
    offered = own.new_zeros(len(own), size)
    offered[:, : own.shape[1]] = own
    everyone = share.joined(offered.unsqueeze(0)).transpose(0, 1).flatten(1)  # K x (P m)
    weight, place = everyone.topk(size, dim=1)
    mine = (place // size == share.rank) & (place % size < own.shape[1])
    chosen = rows[index.gather(1, torch.where(mine, place % size, 0))]
    return weight, share.total(chosen * mine.unsqueeze(-1))[0]
