"""Which samples are in an epoch, in which order, and on which process: pure functions of (seed, epoch).

No iterator has a state: a position is (epoch, step), and every process computes the same joined batch and
takes its own share, so any number of processes sees the same batches and no sample is lost or repeated.

| kind     | class k appears in an epoch                    | within a class                        |
|----------|------------------------------------------------|---------------------------------------|
| instance | n_k times                                      | each sample once                      |
| sqrt     | proportionally to n_k^(1/2), rounded           | reshuffled passes, the last one cut   |
| balanced | equally often, rounded                         | the same                              |
| pairs    | n_k times, one more where that is odd          | neighbours in the order are partners  |

With `together` m, `instance` and `pairs` keep m images of a class in one batch: class k then appears n_k
times, rounded up to a multiple of m.
(Kang et al. 2020 draw classes with probability n_k^e; the exact quotas here have the same mean and no noise.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.train.seeding import derive_seed

Indices = NDArray[np.int64]


def _instance(labels: Indices, rng: np.random.Generator) -> Indices:
    return rng.permutation(len(labels))


def _by_power(power: float) -> Callable[[Indices, np.random.Generator], Indices]:
    def draw(labels: Indices, rng: np.random.Generator) -> Indices:
        counts = np.bincount(labels)
        share = np.where(counts > 0, counts.astype(float) ** power, 0.0)
        # Systematic rounding: one random offset, quotas off by less than one, total exact.
        edges = np.concatenate([[0.0], np.cumsum(share / share.sum() * len(labels))])
        edges[-1] = len(labels)
        quota = np.diff(np.floor(edges + rng.random()).astype(np.int64))
        passes = [_passes(np.flatnonzero(labels == k), int(n), rng) for k, n in enumerate(quota) if n > 0]
        return rng.permutation(np.concatenate(passes))

    return draw


def _passes(members: Indices, n: int, rng: np.random.Generator) -> Indices:
    """n draws from one class: whole shuffled passes, then a part of one."""
    return np.concatenate([rng.permutation(members) for _ in range(-(-n // len(members)))])[:n]


def _grouped(labels: Indices, rng: np.random.Generator, size: int) -> Indices:
    """Every sample, in groups of `size` of one class. The groups of a class are evenly spaced in the epoch,
    from a random offset on, so that a batch holds as many different classes as it can."""
    order = np.lexsort((rng.random(len(labels)), labels))
    counts = np.bincount(labels)
    pieces, places = [], []
    for members in np.split(order, np.cumsum(counts)[:-1]):
        rest = len(members) % size
        if rest:  # filled up with others that have partners already (with themselves, in a small class)
            others = members[:-rest] if len(members) > rest else members
            members = np.append(members, _passes(others, size - rest, rng))
        groups = members.reshape(-1, size)
        pieces.append(groups)
        places.append((np.arange(len(groups)) + rng.random()) / max(1, len(groups)))
    return np.concatenate(pieces)[np.argsort(np.concatenate(places), kind="stable")].reshape(-1)


@dataclass(frozen=True)
class Kind:
    """A way to draw an epoch."""

    order: Callable[[Indices, np.random.Generator], Indices]
    unit: int = 1  # neighbours in the order that must be in one batch
    groups: bool = False  # can more of them be kept together?


KINDS = {
    "instance": Kind(_instance, groups=True),
    "sqrt": Kind(_by_power(0.5)),
    "balanced": Kind(_by_power(0.0)),
    "pairs": Kind(_instance, unit=2, groups=True),
}


@dataclass(frozen=True)
class Sampler:
    """An epoch's samples, cut into joined batches, each process's share and its micro-batches."""

    kind: str
    labels: Indices
    batch_size: int  # over all processes
    seed: int
    processes: int = 1
    micro_batch: int | None = None  # samples a process holds at once
    repeats: Indices | None = None  # how often each sample appears in an epoch; None: once
    together: int = 1  # images of a class that must be in one batch

    def __post_init__(self) -> None:
        smallest = self.unit * self.processes
        if self.batch_size < smallest:
            what = "one sample" if self.unit == 1 else self._group
            raise UserError(
                f"batch_size {self.batch_size} is smaller than {what} on each of {self.processes} processes; "
                f"use at least {smallest}"
            )
        if self.micro_batch is not None and self.micro_batch < self.unit:
            raise UserError(
                f"micro_batch {self.micro_batch} is smaller than {self._group}; use at least {self.unit}"
            )
        if len(self.labels) < smallest:
            raise UserError(f"{len(self.labels)} training samples are too few for {self.processes} processes")

    @property
    def unit(self) -> int:
        """How many neighbours in the order must be in one batch."""
        kind = KINDS[self.kind]
        return max(kind.unit, self.together) if kind.groups else kind.unit

    def keeping(self, given: int | Literal["auto"], wanted: int) -> Sampler:
        """The same, with the given number of images of a class together; "auto": as many as are wanted where
        classes outnumber half of what is computed at once: chance would leave some images without partner."""
        if given != "auto":
            return replace(self, together=given)
        share = min(self.batch_size // self.processes, self.micro_batch or self.batch_size)
        if 2 * len(np.unique(self.labels)) <= share * self.processes:
            return self
        return replace(self, together=max(1, min(wanted, share, len(self.labels) // self.processes)))

    @property
    def _group(self) -> str:
        return "one class pair" if self.unit == 2 else f"{self.unit} images of a class"

    def order(self, epoch: int) -> Indices:
        """Row numbers of the whole epoch."""
        rng = np.random.default_rng(derive_seed(self.seed, "order", epoch))
        rows = np.arange(len(self.labels))
        if self.repeats is not None:
            rows = np.repeat(rows, self.repeats)
        if self.unit > 1:
            return rows[_grouped(self.labels[rows], rng, self.unit)]
        return rows[KINDS[self.kind].order(self.labels[rows], rng)]

    def edges(self, n: int) -> Indices:
        """Where n samples are cut into batches; a rest too small for every process joins the last one."""
        size = self.batch_size - self.batch_size % self.unit
        edges = np.arange(0, n, size)
        if len(edges) > 1 and n - edges[-1] < max(2, self.unit * self.processes):
            edges = edges[:-1]
        return np.append(edges, n)

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch, the same for every epoch."""
        return len(self.edges(len(self.order(0)))) - 1

    def epoch(self, epoch: int) -> list[Indices]:
        """The joined batches."""
        order = self.order(epoch)
        edges = self.edges(len(order))
        return [order[a:b] for a, b in pairwise(edges)]

    def parts(self, batch: Indices, rank: int) -> list[Indices]:
        """The share of process `rank` as micro-batches; every process gets equally many of them."""
        return [batch[part.start : part.stop] for part in self._plan(len(batch))[rank]]

    def weights(self, size: int) -> list[float]:
        """What part of a joined batch of `size` samples each (joined) micro-batch is."""
        return [sum(map(len, same)) / size for same in zip(*self._plan(size), strict=True)]

    def partners(self, epoch: int) -> dict[str, float]:
        """How many others of its class an image meets, on average, in what is computed at once (the joined
        micro-batch), and the share of images that meet none."""
        met: list[Indices] = []
        for batch in self.epoch(epoch):
            for joined in zip(*self._plan(len(batch)), strict=True):
                labels = self.labels[np.concatenate([batch[part.start : part.stop] for part in joined])]
                met.append(np.bincount(labels)[labels] - 1)
        others = np.concatenate(met)
        return {"mean": float(others.mean()), "without": float((others == 0).mean())}

    def _plan(self, size: int) -> list[list[range]]:
        return _plan(size, self.processes, self.unit, self.micro_batch)


@lru_cache(maxsize=256)
def _plan(size: int, processes: int, unit: int, micro_batch: int | None) -> list[list[range]]:
    """Positions in a joined batch: for each process, those of each of its micro-batches."""
    shares = _cut(range(size), processes, unit)
    largest, smallest = max(map(len, shares)), min(map(len, shares))
    micro = micro_batch or largest
    wanted = -(-largest // max(unit, micro - micro % unit))
    return [_cut(share, min(wanted, smallest // unit), unit) for share in shares]


def _cut(whole: range, parts: int, unit: int) -> list[range]:
    """`parts` consecutive ranges of whole units, as equal as can be, the longer ones first."""
    units, extra = divmod(len(whole) // unit, parts)
    edges = [unit * (units * i + min(i, extra)) for i in range(parts)] + [len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]
