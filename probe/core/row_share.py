"""The rows of one matrix, shared by the processes of a world.

Every process is given the same matrix and labels; of the features it reads only its own, consecutive rows.
What is a sum over rows is added up over processes, and what each process computes for itself from the same
numbers can be made equal to the last bit, so that all of them decide alike. A process alone has every row,
and all of this is the identity.

>>> share = RowShare.of(len(y))            # inside `collectives.together()`
>>> gram, = share.total(rows.T @ rows)     # of all rows, on every process
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from probe.core import collectives


@dataclass(frozen=True)
class RowShare:
    """Rows `start` to `stop` of N, those of process `rank` of `size`."""

    rows: int  # N
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, rows: int) -> RowShare:
        """This process's share of so many rows: all of them outside `collectives.together()`."""
        size = collectives.sharing()
        return cls(rows, dist.get_rank() if size > 1 else 0, size)

    @property
    def start(self) -> int:
        """The first row; process 0 has one wherever there is any."""
        return -(-self.rows * self.rank // self.size)

    @property
    def stop(self) -> int:
        """The row after the last."""
        return -(-self.rows * (self.rank + 1) // self.size)

    @property
    def most(self) -> int:
        """The rows of the process that has most: what every process can decide by."""
        return -(-self.rows // self.size)

    def mine(self, x: Any) -> Any:
        """This process's part of something with a row for each of the N."""
        return x if self.size == 1 else x[self.start : self.stop]

    def matrix(self, X: Any) -> Any:
        """This process's rows of features; nothing is read of those on disk."""
        return X.part(self.start, self.stop) if self.size > 1 and hasattr(X, "part") else self.mine(X)

    def total(self, *sums: Tensor) -> tuple[Tensor, ...]:
        """Each tensor added up over processes; those of one dtype and device travel together."""
        if self.size == 1:
            return sums
        return _together(sums, dist.all_reduce)

    def agreed(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Process 0's values: equal numbers may be rounded differently on different machines."""
        if self.size == 1:
            return values
        return _together(values, lambda packed: dist.broadcast(packed, src=0))

    def joined(self, mine: Tensor) -> Tensor:
        """The rows of all processes, N x ..., of each one's part."""
        return collectives.gather(mine)[0] if self.size > 1 else mine


def _together(tensors: tuple[Tensor, ...], act: Any) -> tuple[Tensor, ...]:
    """What a collective makes of the tensors, with one call for each dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, t in enumerate(tensors):
        kinds.setdefault((t.dtype, t.device), []).append(i)
    made = list(tensors)
    for places in kinds.values():
        packed = torch.cat([tensors[i].detach().reshape(-1) for i in places])
        act(packed)
        parts = packed.split([tensors[i].numel() for i in places])
        for i, part in zip(places, parts, strict=True):
            made[i] = part.view(tensors[i].shape)
    return tuple(made)
