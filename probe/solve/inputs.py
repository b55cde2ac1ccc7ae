"""What callers hand to a solver: features of any kind, labels, weights. Checked here, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.errors import UserError


class FeatureRows:
    """An N x D matrix that is only ever read block by block, or copied whole.

    `X` is a torch tensor, a NumPy array (memory-mapped too) or anything with `.shape` and
    `.blocks(rows)`, such as the feature cache's matrix.
    """

    def __init__(self, X: Any) -> None:
        if not hasattr(X, "shape"):
            X = np.asarray(X)
        if len(X.shape) != 2 or 0 in X.shape:
            raise UserError(
                f"features must be a matrix, rows x dimensions, with no empty side; got {tuple(X.shape)}"
            )
        self.source = X
        self.shape: tuple[int, int] = (int(X.shape[0]), int(X.shape[1]))
        # float64 in means that the caller wants float64 out; everything else is read as float32
        self.dtype = torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else torch.float32
        self.device = X.device if isinstance(X, Tensor) else torch.device("cpu")

    def blocks(self, rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """(first row, block) pairs that cover the matrix in order."""
        start = 0
        for block in self._native_blocks(rows):
            yield start, torch.as_tensor(block).to(device=device, dtype=dtype)
            start += len(block)

    def _native_blocks(self, rows: int) -> Iterator[Any]:
        if not isinstance(self.source, (Tensor, np.ndarray)):
            yield from self.source.blocks(rows)
            return
        for start in range(0, self.shape[0], rows):
            block = self.source[start : start + rows]
            # copied, because a read-only memory map must not become a writable tensor
            yield np.array(block) if isinstance(block, np.ndarray) else block.detach()

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The whole matrix, filled block by block so that the peak is one copy."""
        whole = torch.empty(self.shape, dtype=dtype, device=device)
        for start, block in self.blocks(65536, dtype, device):
            whole[start : start + len(block)] = block
        return whole

    def refuse_non_finite(self) -> None:
        """Name the first row that holds NaN or infinity, if there is one."""
        for start, block in self.blocks(65536, self.dtype, torch.device("cpu")):
            bad = (~block.isfinite()).any(dim=1).nonzero()
            if len(bad):
                row = int(bad[0])
                column = int((~block[row].isfinite()).nonzero()[0])
                raise UserError(
                    f"features hold {float(block[row, column])} in row {start + row}, column {column}: "
                    "extract them again, or leave that row out"
                )


def as_labels(y: Any, num_classes: int, n: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Labels as int64 in 0..num_classes-1, one for each of the n rows."""
    labels = torch.as_tensor(np.asarray(y) if not isinstance(y, Tensor) else y)
    if labels.shape != (n,):
        raise UserError(f"{n} rows of features need {n} labels, got shape {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(f"labels must be class indices (integers), got {labels.dtype}")
    labels = labels.to(device=device, dtype=torch.int64)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        row = int(((labels < 0) | (labels >= num_classes)).nonzero()[0])
        raise UserError(
            f"label {int(labels[row])} in row {row} is outside 0..{num_classes - 1} ({num_classes} classes)"
        )
    return labels


def as_weights(sample_weight: Any, n: int, *, device: torch.device | str = "cpu") -> Tensor | None:
    """Non-negative weights, one a row, in float64; None stays None."""
    if sample_weight is None:
        return None
    weights = torch.as_tensor(sample_weight).to(device=device, dtype=torch.float64)
    if weights.shape != (n,):
        raise UserError(f"{n} rows of features need {n} sample weights, got shape {tuple(weights.shape)}")
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise UserError("sample weights must be finite and not negative")
    return weights


def as_l2s(l2s: Sequence[float]) -> list[float]:
    """Penalties l2 > 0; without one, separable data have no optimum."""
    values = [float(v) for v in l2s]
    for value in values:
        if not (0 < value < float("inf")):
            raise UserError(
                f"l2 must be positive and finite, got {value:g}: without it no optimum need exist"
            )
    if not values:
        raise UserError("no l2 values given")
    return values
