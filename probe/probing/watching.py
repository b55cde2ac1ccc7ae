"""A long solve on the screen: its cost before it starts, then a bar with the gap and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from probe.solve import cost
from probe.solve.cost import Cost
from probe.system import world
from probe.system.progress import bar

LARGE = 2e11  # floating-point operations of a pass from which on it is worth a word: seconds of a core


class _Screen:
    """Tells of solves that are large enough; see `probe.solve.cost.Watcher`."""

    def __init__(self, advance: Callable[..., None]) -> None:
        self.advance, self.told = advance, set[Cost]()
        self.large, self.note = False, ""
        self.first: tuple[float, float] | None = None  # when, and log gap: of the first iteration

    def start(self, found: Cost) -> None:
        self.large, self.first = found.flop / found.processes >= LARGE, None
        if self.large and found not in self.told and world.rank() == 0:
            self.told.add(found)
            print(found, file=sys.stderr, flush=True)

    def one_pass(self) -> None:
        if self.large:
            self.advance(1, self.note)

    def gap(self, relative: float, tol: float) -> None:
        if not (self.large and 0 < relative < math.inf):
            return
        now, height = time.monotonic(), math.log(relative)
        self.note = f"gap {relative:.0e} of {tol:.0e}"
        if self.first is None:
            self.first = now, height
        elif height < self.first[1] and relative > tol > 0:
            left = (now - self.first[0]) * (height - math.log(tol)) / (self.first[1] - height)
            self.note += f", about {told(left)} left"


@contextmanager
def shown() -> Iterator[None]:
    """Large solves inside the block say what they cost and how far they are."""
    first = world.rank() == 0
    with bar("solving", cost.PASSES, "passes", show=first) as advance, cost.watched(_Screen(advance)):
        yield


def told(seconds: float) -> str:
    """A time, roughly."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
