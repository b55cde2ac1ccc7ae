"""What a streamed solve costs, said before it starts, and how far it is.

A solver knows nothing of screens: who wants to be told puts a `Watcher` around it.

>>> with watched(watcher):
...     fit(X, y, 1000, l2=1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from probe.solve.inputs import FeatureRows

PASSES = 40  # what a solve to the default tolerance takes on the features of real backbones, roughly
PAIRS = 16  # matrices of the head's size that L-BFGS remembers, in float32
HEADS = 10  # and that a pass and an iteration need, in float64
GRAMS = 4  # D x D in float64: Gram matrix, eigenvectors and what the decomposition needs
BLOCKS = 64 << 20  # bytes of blocks and of their logits
SAMPLE = 1 << 30  # bytes, at most, of the rows that are solved first, with their logits
PER_ROW = 3 * 8  # bytes for its label and weight, however large N is


@dataclass(frozen=True)
class Cost:
    """Of one problem that does not fit into memory, for each of P processes."""

    rows: int
    dim: int
    classes: int
    heads: int  # values of l2 in one pass
    stored: int  # bytes of features, all together
    processes: int

    @property
    def memory(self) -> int:
        """Bytes in the memory of a process: all but the label of a row is independent of N."""
        head = self.heads * self.classes * (self.dim + 1)
        fixed = (4 * PAIRS + 8 * HEADS) * head + 8 * GRAMS * self.dim**2 + BLOCKS
        sample = min(SAMPLE, 4 * self.rows // 10 // self.processes * (self.dim + 5 * self.classes))
        return fixed + sample + PER_ROW * self.rows

    @property
    def flop(self) -> int:
        """Floating-point operations of a pass: two products, a multiplication and an addition each."""
        return 4 * self.rows * self.dim * self.classes * self.heads

    def __str__(self) -> str:
        shared = f", shared by {self.processes} processes" if self.processes > 1 else ""
        return (
            f"{self.rows:,} x {self.dim:,}, {self.classes:,} classes: {_gb(self.stored)} of features on disk"
            f", {_gb(self.memory)} in memory, {_flop(self.flop)} a pass{shared}, about {PASSES} passes"
        )


class Watcher(Protocol):
    """Who is told."""

    def start(self, cost: Cost) -> None:
        """A streamed solve begins."""

    def one_pass(self) -> None:
        """The features have been read once more."""

    def gap(self, relative: float, tol: float) -> None:
        """The certified relative excess after an iteration, and the one at which it ends."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell the watcher of every streamed solve inside the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def of(features: FeatureRows, classes: int, heads: int) -> Cost:
    """The cost of a streamed solve of these rows."""
    return Cost(*features.shape, classes, heads, features.stored_bytes, features.share.size)


def start(cost: Cost) -> None:
    """A streamed solve begins."""
    if (watcher := _watcher.get()) is not None:
        watcher.start(cost)


def one_pass() -> None:
    """The features have been read once more."""
    if (watcher := _watcher.get()) is not None:
        watcher.one_pass()


def gap_watch() -> Callable[[float, float], object] | None:
    """Whom an optimiser tells its gap; None: nobody."""
    watcher = _watcher.get()
    return None if watcher is None else watcher.gap


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.0f} MB"


def _flop(count: int) -> str:
    return f"{count / 1e12:,.1f} TFLOP" if count >= 1e11 else f"{count / 1e9:,.1f} GFLOP"
