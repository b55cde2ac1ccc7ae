"""How many threads a product is worth: none that would have to wait for somebody else's process.

Threads of one product wait for each other at its end. On a busy machine one of them is always not scheduled,
and two threads are slower than one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

SMALL_PRODUCT = 50_000_000  # multiply-adds of one pass, some milliseconds of one core
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": two cores' worth; "max 100000": no limit


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """One thread for a small product (`work` multiply-adds), else as many as are free.

    Waking the others would cost a small one more than they do.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if work < SMALL_PRODUCT else min(before, _free()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _free() -> int:
    """Decided once, before this process's own work is part of the load."""
    return 10**6 if "OMP_NUM_THREADS" in os.environ else free_cores()


def free_cores() -> int:
    """Cores that this process may use and that others leave to it, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    busy = 0.0
    with suppress(OSError, AttributeError):
        busy = os.getloadavg()[0]  # of the last minute: what runs or waits for a core
    return max(1, round(cores - busy))
