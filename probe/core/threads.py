"""How many threads work is worth: none that would have to wait for somebody else's process.

Threads of one product wait for each other at its end. On a busy machine one of them is always not scheduled,
and two threads are slower than one; where they wait actively, many times slower. How they wait is read from
the environment when torch is loaded (the command line asks for sleep); how many there are can be said at any
time, so that this is what is chosen, also in a program that has imported torch long before. NumPy has threads
of its own for products and eigenvalues, which always wait actively: they are chosen with torch's.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

SMALL_PRODUCT = 50_000_000  # multiply-adds of one pass, some milliseconds of one core
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": two cores' worth; "max 100000": no limit
STAT = Path("/proc/stat")  # what each core has done, in ticks
GLANCE, LOOK_BACK = 0.1, 30.0  # seconds that cores are watched for: fewer are noise, more are history
LOAD_MEMORY = 60.0  # seconds over which the system averages its load, by an exponential


def _idle() -> float | None:
    """Seconds that the cores of this process have been idle, together; None where the system does not say."""
    with suppress(OSError, AttributeError, ValueError, IndexError):
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        rows = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
        ticks = [int(row[4]) + int(row[5]) for row in rows if row[0] in mine]  # idle, and waiting for a disk
        if len(ticks) == len(mine):
            return sum(ticks) / os.sysconf("SC_CLK_TCK")
    return None


_begun = time.monotonic(), time.process_time()
_begun_idle = _idle()


def usable() -> int:
    """Threads that torch may use and that others leave cores for."""
    return min(torch.get_num_threads(), _free())


@contextmanager
def free_threads(work: int | None = None) -> Iterator[None]:
    """As many of torch's and NumPy's threads as are free, and as before afterwards; also a decorator.

    One for a small product (`work` multiply-adds): waking the others would cost it more than they do.
    """
    before = torch.get_num_threads()
    number = 1 if work is not None and work < SMALL_PRODUCT else usable()
    torch.set_num_threads(number)
    try:
        with _numpy().limit(limits=number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _numpy() -> ThreadpoolController:
    """What sets the threads of the libraries that NumPy calls; to look for them takes a millisecond."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@cache
def _free() -> int:
    """Decided once, so that the same work is split in the same way for as long as this process lives."""
    return 10**6 if "OMP_NUM_THREADS" in os.environ else free_cores()


def free_cores() -> int:
    """Cores that this process may use and that others leave to it, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return max(1, round(cores - max(0.0, _others())))


def _others() -> float:
    """Cores' worth of work that others do: since this module was loaded, if that is a moment ago, else now.

    The load average is asked where nothing else is known: for a minute it still counts what has ended, such
    as the command before this one.
    """
    at, own, idle = *_begun, _begun_idle
    if not GLANCE <= time.monotonic() - at <= LOOK_BACK:
        at, own, idle = time.monotonic(), time.process_time(), _idle()
        if idle is not None:
            time.sleep(GLANCE)
    now = _idle()
    if idle is None or now is None:
        with suppress(OSError, AttributeError):
            return os.getloadavg()[0] - own_load()
        return 0.0
    elapsed = time.monotonic() - at
    busy = len(os.sched_getaffinity(0)) * elapsed - (now - idle)
    return (busy - (time.process_time() - own)) / elapsed


def own_load() -> float:
    """This process's part of the load, if it has worked evenly since this module was loaded."""
    elapsed = time.monotonic() - _begun[0]
    rate = (time.process_time() - _begun[1]) / max(elapsed, 1e-9)
    return rate * (1 - math.exp(-elapsed / LOAD_MEMORY))
