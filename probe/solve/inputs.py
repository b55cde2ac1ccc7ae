"""What callers hand to a solver: features of any kind, labels, weights. Checked here, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.core.row_share import RowShare
from probe.errors import UserError
from probe.solve.devices import moved

READ_AT_ONCE = 65_536  # rows, where blocks are only copied or looked at
BLOCK = 16_384  # rows, where products are made of them


class FeatureRows:
    """An N x D matrix that is only ever read block by block, or copied whole.

    `X` is a torch tensor, a NumPy array (memory-mapped too) or anything with `.shape` and
    `.blocks(rows)`, such as the feature cache's matrix. Inside `collectives.together()` a process reads its
    own `share` of the rows: N and D are those of the whole, blocks and tensors are its own.
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
        self.share = RowShare.of(self.shape[0])
        # float64 in means that the caller wants float64 out; everything else is read as float32
        self.dtype = torch.float64 if str(getattr(X, "dtype", "")).endswith("float64") else torch.float32
        self.device = X.device if isinstance(X, Tensor) else torch.device("cpu")
        self._held: Tensor | None = None

    @property
    def stored_bytes(self) -> int:
        """Of all N rows, where they are kept."""
        itemsize = getattr(getattr(self.source, "dtype", None), "itemsize", 4)
        return int(getattr(self.source, "stored_bytes", self.shape[0] * self.shape[1] * itemsize))

    def hold_on(self, device: torch.device, budget: int) -> None:
        """Move this process's rows to a GPU, once and as they are stored, if they fit the budget."""
        if device.type == "cpu" or self.device == device or self._held is not None:
            return
        if self.stored_bytes // self.share.size <= budget:
            parts = list(moved(self._stored_blocks(READ_AT_ONCE), device))
            self._held = torch.cat(parts) if parts else None

    def blocks(self, rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """(first row, block) pairs that cover this process's rows in order, counted from its first."""
        for start, block in self._moved(rows, device):
            yield start, self._finished(block).to(dtype)

    def centred(self, mean: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
        """The same minus the `mean`, in its dtype and on its device; the next block overwrites the last one.

        Fresh memory for every block would cost a sixth of a pass over float16 features.
        """
        out = torch.empty(rows, self.shape[1], dtype=mean.dtype, device=mean.device)
        for start, block in self._moved(rows, mean.device):
            if not getattr(self.source, "as_stored", True):
                block = self._finished(block)
            yield start, out[: len(block)].copy_(block).sub_(mean)

    def _moved(self, rows: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        start = 0
        stored = self._stored_blocks(rows) if self._held is None else iter(self._held.split(rows))
        for block in moved(stored, device):
            yield start, block
            start += len(block)

    def _finished(self, block: Tensor) -> Tensor:
        finish = getattr(self.source, "finish", None)
        return block if finish is None else finish(block)

    def _stored_blocks(self, rows: int) -> Iterator[Tensor]:
        own, share = self.source, self.share
        if isinstance(own, (Tensor, np.ndarray)):
            for start in range(share.start, share.stop, rows):
                block = own[start : min(start + rows, share.stop)]
                # copied, because a read-only memory map must not become a writable tensor
                yield torch.from_numpy(np.array(block)) if isinstance(block, np.ndarray) else block.detach()
        elif hasattr(own, "stored_blocks"):
            yield from (own if share.size == 1 else own.part(share.start, share.stop)).stored_blocks(rows)
        else:
            yield from self._picked(rows)

    def _picked(self, rows: int) -> Iterator[Tensor]:
        """This process's rows of something that can only be read from beginning to end."""
        at = 0
        for block in map(torch.as_tensor, self.source.blocks(rows)):
            part = block[max(0, self.share.start - at) : max(0, self.share.stop - at)]
            at += len(block)
            if len(part):
                yield part

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """This process's rows, filled block by block so that the peak is one copy."""
        own = self.share.stop - self.share.start
        whole = torch.empty((own, self.shape[1]), dtype=dtype, device=device)
        for start, block in self.blocks(READ_AT_ONCE, dtype, device):
            whole[start : start + len(block)] = block
        return whole

    def refuse_non_finite(self) -> None:
        """Name the first row that holds NaN or infinity, if there is one."""
        for start, block in self.blocks(READ_AT_ONCE, self.dtype, torch.device("cpu")):
            bad = (~block.isfinite()).any(dim=1).nonzero()
            if len(bad):
                row = int(bad[0])
                column = int((~block[row].isfinite()).nonzero()[0])
                raise UserError(
                    f"features hold {float(block[row, column])} in row {self.share.start + start + row}, "
                    f"column {column}: extract them again, or leave that row out"
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
    """N non-negative weights, one per row, in float64; None stays None."""
    if sample_weight is None:
        return None
    weights = torch.as_tensor(sample_weight).to(device=device, dtype=torch.float64)
    if weights.shape != (n,):
        raise UserError(f"{n} rows of features need {n} sample weights, got shape {tuple(weights.shape)}")
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise UserError("sample weights must be finite and not negative")
    return weights


def as_l2s(l2s: Sequence[float]) -> list[float]:
    """Penalties l2 > 0 as floats; without one, separable data have no optimum."""
    values = [float(v) for v in l2s]
    for value in values:
        if not (0 < value < float("inf")):
            raise UserError(
                f"l2 must be positive and finite, got {value:g}: without it no optimum need exist"
            )
    if not values:
        raise UserError("no l2 values given")
    return values
