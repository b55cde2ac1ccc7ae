"""N x dim features over memory-mapped shards: looks like an array, holds no copy.

The shards may be stored in half precision; what comes out is always float32, so that no sum overflows
because of how the numbers were kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Matrix:
    """Rows of several tensors, in order, as one matrix; `rows` makes it a view of some of them.

    >>> X[5]; X[:100]; X[[3, 1, 3]]; X[y == 2]        # tensors; only these rows are read
    >>> for block in X.blocks(4096): ...             # the whole, in bounded memory
    >>> X.tensor(); numpy.asarray(X)                 # the whole, at once
    """

    dtype = torch.float32

    def __init__(self, shards: Sequence[Tensor], dim: int, rows: Tensor | None = None) -> None:
        self._shards = tuple(shard for shard in shards if len(shard))
        self._ends = torch.tensor([len(shard) for shard in self._shards], dtype=torch.int64).cumsum(0)
        self._stops: list[int] = self._ends.tolist()
        self._rows = rows
        stored = int(self._ends[-1]) if len(self._shards) else 0
        self.shape = (stored if rows is None else len(rows), dim)

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Matrix({self.shape[0]:,} x {self.shape[1]:,}, {len(self._shards)} shards)"

    def __getitem__(self, which: Any) -> Tensor:
        if isinstance(which, tuple):
            first, *rest = which
            columns = rest[0] if rest else slice(None)
            return self[first][columns] if _is_integer(first) else self[first][:, columns]
        if _is_integer(which):
            return self._gather(self._positions([int(which)]))[0]
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step == 1 and self._rows is None:
                return self._range(start, max(start, stop))
            which = range(start, stop, step)
        return self._gather(self._positions(which))

    @classmethod
    def join(cls, parts: Sequence[Matrix]) -> Matrix:
        """The rows of several whole matrices, one after the other; nothing is read."""
        if any(part._rows is not None for part in parts):
            raise ValueError("views cannot be joined; join the matrices, then view")
        return cls([shard for part in parts for shard in part._shards], parts[0].shape[1])

    def view(self, which: Any) -> Matrix:
        """The same shards, only these rows (an index array or a mask); nothing is read."""
        chosen = self._positions(which)
        return type(self)(self._shards, self.shape[1], chosen)

    def part(self, start: int, stop: int) -> Matrix:
        """Consecutive rows of the same shards; nothing is read, and no row numbers are kept."""
        if self._rows is not None:
            return type(self)(self._shards, self.shape[1], self._rows[start:stop])
        return type(self)([piece for piece, _ in self._pieces(start, stop)], self.shape[1])

    def blocks(self, rows: int = 4096) -> Iterator[Tensor]:
        """Tensors of `rows` rows (the last: the rest); those inside one float32 shard are not copied."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def stored_blocks(self, rows: int = 4096) -> Iterator[Tensor]:
        """The same as they are stored, in half precision too; `finish` makes of them what `blocks` gives."""
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            if self._rows is None:
                yield self._range(start, stop, stored=True)
            else:
                yield self._gather(self._rows[start:stop], stored=True)

    def finish(self, stored: Tensor) -> Tensor:
        """A block of `stored_blocks` in the dtype of the matrix."""
        return stored.to(self.dtype)

    @property
    def _stored(self) -> torch.dtype:
        """The one dtype of all shards, else the dtype of the matrix."""
        kinds = {shard.dtype for shard in self._shards}
        return kinds.pop() if len(kinds) == 1 else self.dtype

    @property
    def stored_bytes(self) -> int:
        """Of all rows, as they are stored."""
        return self.shape[0] * self.shape[1] * self._stored.itemsize

    def tensor(self) -> Tensor:
        """The whole matrix in memory."""
        return self[:]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.tensor().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    # -- positions are row numbers of the joined shards -----------------------------------------------------

    def _positions(self, which: Any) -> Tensor:
        chosen = torch.as_tensor(np.asarray(which) if not isinstance(which, Tensor) else which).cpu()
        if chosen.dtype == torch.bool:
            if chosen.shape != (len(self),):
                raise IndexError(f"a mask of {len(chosen)} values for {len(self)} rows")
            chosen = chosen.nonzero().flatten()
        if chosen.ndim != 1 or (chosen.numel() and (chosen.is_floating_point() or chosen.is_complex())):
            raise IndexError("rows are chosen by an integer, a slice, a list of integers or a mask")
        chosen = chosen.to(torch.int64)
        if chosen.numel() and not (-len(self) <= int(chosen.min()) and int(chosen.max()) < len(self)):
            raise IndexError(f"row out of range: the matrix has {len(self)} rows")
        chosen = torch.where(chosen < 0, chosen + len(self), chosen)
        return chosen if self._rows is None else self._rows[chosen]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Tensor, int]]:
        """The parts of shards that hold these rows, and where each begins among them."""
        first = bisect_right(self._stops, start)
        for i in range(first, len(self._shards)):
            begin = self._stops[i] - len(self._shards[i])
            if begin >= stop:
                return
            piece = self._shards[i][max(0, start - begin) : stop - begin]
            yield piece, max(0, begin - start)

    def _range(self, start: int, stop: int, *, stored: bool = False) -> Tensor:
        """Consecutive rows: a view of the file if they lie in one shard of the wanted dtype, else a copy."""
        dtype = self._stored if stored else self.dtype
        pieces = list(self._pieces(start, stop))
        if len(pieces) == 1:
            return pieces[0][0].to(dtype)
        out = torch.empty(stop - start, self.shape[1], dtype=dtype)
        for piece, at in pieces:
            out[at : at + len(piece)] = piece
        return out

    def _gather(self, positions: Tensor, *, stored: bool = False) -> Tensor:
        """Any rows in any order: each shard is asked once for all that it holds of them."""
        dtype = self._stored if stored else self.dtype
        if len(self._shards) == 1:
            return self._shards[0].index_select(0, positions).to(dtype)
        out = torch.empty(len(positions), self.shape[1], dtype=dtype)
        home = torch.searchsorted(self._ends, positions, right=True)
        order = torch.argsort(home, stable=True)
        counts = torch.bincount(home, minlength=len(self._shards)).tolist()
        for shard, end, places in zip(self._shards, self._stops, order.split(counts), strict=True):
            if len(places):
                local = positions[places] - (end - len(shard))
                out.index_copy_(0, places, shard.index_select(0, local).to(dtype))
        return out


class SideBySide:
    """The columns of several matrices with the same rows, as one; nothing is read until rows are asked for.

    It satisfies `core.scaling.FeatureMatrix`, as a `Matrix` does.
    """

    dtype = torch.float32
    ndim = 2

    def __init__(self, parts: Sequence[Matrix]) -> None:
        if len({len(part) for part in parts}) != 1:
            raise ValueError(f"matrices of {[len(part) for part in parts]} rows cannot stand side by side")
        self.parts = tuple(parts)
        self.widths = [part.shape[1] for part in parts]
        self.shape = (len(parts[0]), sum(self.widths))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"SideBySide({self.shape[0]:,} x {' + '.join(f'{width:,}' for width in self.widths)})"

    def __getitem__(self, which: Any) -> Tensor:
        if isinstance(which, tuple):
            first, *rest = which
            return self[first][..., rest[0] if rest else slice(None)]
        return torch.cat([part[which] for part in self.parts], dim=-1)

    @classmethod
    def join(cls, parts: Sequence[SideBySide]) -> SideBySide:
        """The rows of several, one after the other; nothing is read."""
        columns = zip(*(part.parts for part in parts), strict=True)
        return cls([Matrix.join(column) for column in columns])

    def part(self, start: int, stop: int) -> SideBySide:
        """Consecutive rows; nothing is read."""
        return SideBySide([part.part(start, stop) for part in self.parts])

    def view(self, which: Any) -> SideBySide:
        """Only these rows (an index array or a mask); nothing is read."""
        return SideBySide([part.view(which) for part in self.parts])

    def blocks(self, rows: int = 4096) -> Iterator[Tensor]:
        """Tensors of `rows` rows (the last: the rest)."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def stored_blocks(self, rows: int = 4096) -> Iterator[Tensor]:
        """The same as they are stored, where all parts are stored alike."""
        if len({part._stored for part in self.parts}) != 1:
            yield from self.blocks(rows)
            return
        for pieces in zip(*(part.stored_blocks(rows) for part in self.parts), strict=True):
            yield torch.cat(pieces, dim=-1)

    def finish(self, stored: Tensor) -> Tensor:
        """A block of `stored_blocks` in the dtype of the matrix."""
        return stored.to(self.dtype)

    @property
    def stored_bytes(self) -> int:
        """Of all rows, as they are stored."""
        return sum(part.stored_bytes for part in self.parts)

    def tensor(self) -> Tensor:
        """The whole matrix in memory, filled part by part."""
        whole = torch.empty(self.shape, dtype=self.dtype)
        for part, columns in zip(self.parts, whole.split(self.widths, dim=1), strict=True):
            columns.copy_(part.tensor())
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.tensor().numpy()
        return array if dtype is None else array.astype(dtype, copy=False)


def _is_integer(which: Any) -> bool:
    return isinstance(which, (int, np.integer)) and not isinstance(which, (bool, np.bool_))
