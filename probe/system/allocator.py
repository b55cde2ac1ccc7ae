"""Freed memory is kept for the next step.

glibc takes every tensor of more than 32 MB from the system and gives it back when it is freed, so a step on a
CPU spends a third of its time on fresh pages, each of which the kernel clears first. Kept in the heap, the
same pages serve step after step: training runs 1.4 x as fast (`benchmarks/allocator.py`), and a process keeps
the memory of its largest step until it says that it has ended.
"""

from __future__ import annotations

import ctypes
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
LARGEST = 2**31 - 1  # mallopt takes an int
FROM_SYSTEM = 2**30  # bytes: a tensor above it is rare, and still goes back to the system


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, for this process; elsewhere nothing happens. Did it?"""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, FROM_SYSTEM)) and bool(mallopt(TRIM_THRESHOLD, LARGEST))


def return_freed_memory() -> None:
    """Give the system back what is kept, where glibc keeps it."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
