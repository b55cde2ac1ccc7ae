"""What happens to features before a head sees them: nothing, standardisation, or unit norm.

The numbers come from training rows only and are saved with the head, so that prediction does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.errors import UserError, nearest

BLOCK = 16_384  # rows handled at a time: bounds memory, whatever the size of the cache


class FeatureMatrix(Protocol):
    """N x D features over memory-mapped shards, too many to hold at once."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""

    def __getitem__(self, which: Any) -> Tensor:
        """Some rows, read into memory."""

    def view(self, which: Any) -> FeatureMatrix:
        """Some rows, still on disk."""

    def part(self, start: int, stop: int) -> FeatureMatrix:
        """Consecutive rows, still on disk."""

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """All rows in order, so many at a time."""

    def stored_blocks(self, rows: int) -> Iterator[Tensor]:
        """The same as they are stored, to be converted where they are needed."""

    def finish(self, stored: Tensor) -> Tensor:
        """What `blocks` gives, of a block of `stored_blocks` on any device."""

    def tensor(self) -> Tensor:
        """All rows, in memory."""


@dataclass(frozen=True)
class Scaling:
    """h -> (h - mean) / spread for N x D features, then to unit norm if asked; `NEUTRAL` changes nothing."""

    mean: Tensor | None = None  # D
    spread: Tensor | None = None  # D
    unit_norm: bool = False

    def __call__(self, features: Tensor) -> Tensor:
        if self.mean is not None and self.spread is not None:
            features = (features - self.mean.to(features)) / self.spread.to(features)
        return F.normalize(features, dim=-1) if self.unit_norm else features

    def then(self, after: Scaling) -> Scaling:
        """This one, then another, as one; unit norm can only be the last of them."""
        if self.mean is None or self.spread is None or after.mean is None or after.spread is None:
            first = after if self.mean is None else self
            return replace(first, unit_norm=after.unit_norm)
        spread = self.spread * after.spread
        return Scaling(self.mean + self.spread * after.mean, spread, after.unit_norm)

    def lazily(self, matrix: FeatureMatrix) -> FeatureMatrix:
        """The same for a matrix that stays on disk: rows are scaled when they are read."""
        return matrix if self == NEUTRAL else Scaled(matrix, self)


NEUTRAL = Scaling()


@dataclass(frozen=True)
class Scaled:
    """A matrix on disk seen through a scaling; a `FeatureMatrix` itself."""

    matrix: FeatureMatrix
    scaling: Scaling
    as_stored = False  # `finish` changes more than the dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Tensor:
        return self.scaling(self.matrix[which])

    def view(self, which: Any) -> Scaled:
        return Scaled(self.matrix.view(which), self.scaling)

    def part(self, start: int, stop: int) -> Scaled:
        return Scaled(self.matrix.part(start, stop), self.scaling)

    def blocks(self, rows: int) -> Iterator[Tensor]:
        return map(self.scaling, self.matrix.blocks(rows))

    def stored_blocks(self, rows: int) -> Iterator[Tensor]:
        return self.matrix.stored_blocks(rows)

    def finish(self, stored: Tensor) -> Tensor:
        return self.scaling(self.matrix.finish(stored))

    def tensor(self) -> Tensor:
        return self.scaling(self.matrix.tensor())


def standard(features: Tensor | FeatureMatrix) -> Scaling:
    """Zero mean and unit variance in every dimension; a constant dimension stays constant.

    Two passes over blocks in float64: the spread around the true mean loses no digits.
    """
    mean, variance = _moments(features)
    return Scaling(mean.float(), torch.where(variance > 0, variance.sqrt(), 1.0).float())


def equal_parts(features: Tensor | FeatureMatrix, widths: Sequence[int]) -> Scaling:
    """Each part (so many columns, side by side) divided by the square root of its total variance.

    So no part outweighs another because of the units that its backbone happens to have. One part alone stays
    as it is.
    """
    if len(widths) == 1:
        return NEUTRAL
    _, variance = _moments(features)
    totals = [float(part.sum()) for part in variance.split(list(widths))]
    spread = [torch.full((w,), v**0.5 if v > 0 else 1.0) for w, v in zip(widths, totals, strict=True)]
    return Scaling(torch.zeros(sum(widths)), torch.cat(spread))


def by_part(kinds: Sequence[str], features: Tensor | FeatureMatrix, widths: Sequence[int]) -> Scaling:
    """Each part's own kind of scaling, "none" or "standard"; "l2" is of all of them together.

    A standardised part is divided by the square root of its width, so that the parts stay of equal variance.
    """
    if len(widths) == 1 or "standard" not in kinds:
        return make(kinds[0], features)
    whole = standard(features)
    assert whole.mean is not None
    assert whole.spread is not None
    means, spreads = [], []
    for kind, width, mean, spread in zip(
        kinds, widths, whole.mean.split(list(widths)), whole.spread.split(list(widths)), strict=True
    ):
        means.append(mean if kind == "standard" else torch.zeros(width))
        spreads.append(spread * width**0.5 if kind == "standard" else torch.ones(width))
    return Scaling(torch.cat(means), torch.cat(spreads))


def _moments(features: Tensor | FeatureMatrix) -> tuple[Tensor, Tensor]:
    """Mean and variance of every dimension, D each, in float64."""
    total, squares = torch.zeros(features.shape[1]).double(), torch.zeros(features.shape[1]).double()
    for block in blocks_of(features):
        total += block.double().sum(dim=0)
    mean = total / features.shape[0]
    for block in blocks_of(features):
        squares += (block.double() - mean).square().sum(dim=0)
    return mean, squares / features.shape[0]


def blocks_of(features: Tensor | FeatureMatrix) -> Iterator[Tensor]:
    """The N x D features in order, a bounded number of rows at a time."""
    yield from features.split(BLOCK) if isinstance(features, Tensor) else features.blocks(BLOCK)


def make(kind: str, features: Tensor | FeatureMatrix) -> Scaling:
    """The scaling called "none", "standard" or "l2", with its numbers taken from N x D `features`."""
    kinds = {
        "none": lambda: NEUTRAL,
        "standard": lambda: standard(features),
        "l2": lambda: Scaling(unit_norm=True),
    }
    if kind not in kinds:
        raise UserError(f'unknown scaling "{kind}"{nearest(kind, kinds)}')
    return kinds[kind]()
