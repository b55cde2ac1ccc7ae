"""How much memory decoding may take at once, by number of pixels, over all threads and loader processes.

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
    """Memory in units that threads take and give back, as do processes that share the budget.

    Only one at a time collects several units: two that each hold half of theirs would wait forever.
    """

    def __init__(self, streams: int, start: BaseContext | None = None) -> None:
        """`start` is the start method of the processes that will share the budget, if not the default."""
        self.unit = UNIT
        self.units = max(LEAST // world.local_size(), EACH_STREAM * streams, UNIT) // UNIT
        start = start or multiprocessing.get_context()
        self._free = start.Semaphore(self.units)
        self._collecting = start.Lock()

    def take(self, size: int) -> int:
        """Wait for `size` bytes; returns the number of units taken, to be given back."""
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
        """Return units to the budget."""
        for _ in range(units):
            self._free.release()


_budget: Budget | None = None
_making = threading.Lock()
_block = threading.local()  # .held: what `until_seen` will give back


def share(streams: int) -> Budget:
    """A new budget for this many streams of this process: threads find it, processes `use` it.

    New, because a loader that was killed gives nothing back.
    """
    budget = Budget(streams)
    use(budget)
    return budget


def use(budget: Budget) -> None:
    """Take from this budget from now on; every loader process calls it when it starts."""
    global _budget
    _budget = budget


def _current() -> Budget:
    with _making:
        return _budget or share(1)


@contextmanager
def until_seen() -> Iterator[None]:
    """Around the use of one image: the memory that decoding took is given back at the end of the block.

    For streams, which resize what they decode: until then the whole image is still in memory.
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
    """Wait until `size` bytes may be used, and hold them for this block or its `until_seen`."""
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
