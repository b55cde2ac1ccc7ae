"""How much memory decoding may take at once, weighed by pixels, over all threads and loader processes.

A photograph takes a few megabytes while it is decoded, a hostile or scanned one close to a gigabyte. Without
a common budget, every stream may hold one of those. Small images take nothing from the budget, so that they
are decoded at full speed; an image that needs more than all of it is decoded alone.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext

from probe.system import world

UNIT = 16 << 20  # bytes; an image below one takes nothing
LEAST = 1 << 30  # bytes of a budget, shared by the training processes of one machine
EACH_STREAM = 256 << 20  # bytes: a photograph of 25 megapixels in every stream


class Budget:
    """Memory in units that threads take and give back, and processes that are given the same budget too.

    Whoever needs several units collects them alone: two that each hold a half would wait for ever.
    """

    def __init__(self, streams: int, start: BaseContext | None = None) -> None:
        """`start` is how processes come to be that will be given the budget, if not in the usual way."""
        self.unit = UNIT
        self.units = max(LEAST // world.local_size(), EACH_STREAM * streams, UNIT) // UNIT
        start = start or multiprocessing.get_context()
        self._free = start.Semaphore(self.units)
        self._collecting = start.Lock()

    def take(self, size: int) -> int:
        """Wait for `size` bytes; the units that were taken, to be given back."""
        wanted, taken = min(size // self.unit, self.units), 0
        if not wanted:
            return 0
        try:
            with self._collecting:
                while taken < wanted:
                    self._free.acquire()
                    taken += 1
        except BaseException:
            self.give_back(taken)
            raise
        return taken

    def give_back(self, units: int) -> None:
        for _ in range(units):
            self._free.release()


_budget: Budget | None = None
_making = threading.Lock()
_block = threading.local()  # .held: what `until_seen` will give back


def share(streams: int) -> Budget:
    """A fresh budget for as many streams of this process: threads find it, processes `use` it.

    Fresh, because a loader that was killed gives nothing back.
    """
    budget = Budget(streams)
    use(budget)
    return budget


def use(budget: Budget) -> None:
    """Take from this budget from now on; a loader process is told so when it starts."""
    global _budget
    _budget = budget


def _current() -> Budget:
    with _making:
        return _budget or share(1)


@contextmanager
def until_seen() -> Iterator[None]:
    """Of one image: the memory that decoding took is given back at the end of the block.

    For streams, which resize what they decode: until then the whole image is still there.
    """
    _block.held = []
    try:
        yield
    finally:
        for budget, units in _block.held:
            budget.give_back(units)
        del _block.held


@contextmanager
def taken(size: int) -> Iterator[None]:
    """Wait until `size` bytes may be used, for the time of the block; inside `until_seen`, of that one."""
    budget = _current()
    units = budget.take(size)
    if hasattr(_block, "held"):
        _block.held.append((budget, units))
        yield
        return
    try:
        yield
    finally:
        budget.give_back(units)
