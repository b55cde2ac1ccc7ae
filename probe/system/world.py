"""This process among others: its rank, the world's size, the cores it may use, and its parent.

A launcher (ours, torchrun, Accelerate's, a script on a cluster) tells a process its place in the environment,
in a set of variables that belong together. A variable that something else left behind is not such a set: if
it were believed, `RANK=1` would have a run compute everything and write nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import NamedTuple

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where the processes find each other; alone they mean nothing
ASKED = "PROBE_PROCESSES"  # how many processes our launcher was told to start, over all machines
LOCAL_SIZE = "LOCAL_WORLD_SIZE"  # how many of the processes are on this machine; not every launcher sets it
# MPI's and a cluster's names for the same: we never follow them; Accelerate would where ours are missing.
MPI = (
    *("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    *(f"{kind}_COMM_WORLD_{name}" for kind in ("OMPI", "MV2") for name in ("RANK", "SIZE")),
    *(f"{kind}_COMM_WORLD_LOCAL_{name}" for kind in ("OMPI", "MV2") for name in ("RANK", "SIZE")),
)
LAUNCHERS = (ASKED, "TORCHELASTIC_RUN_ID")  # each is set by a program that started all of the processes


class Place(NamedTuple):
    """A process's rank, the number of processes, and its rank on this machine."""

    rank: int
    size: int
    local: int


ALONE = Place(0, 1, 0)


def place() -> Place | None:
    """What a complete and consistent set of variables says; None without one."""
    try:
        found = Place(*(int(os.environ[name]) for name in NUMBERS))
    except (KeyError, ValueError):
        return None
    sound = 0 <= found.rank < found.size and 0 <= found.local <= found.rank
    return found if sound and all(os.environ.get(name) for name in MEETING) else None


def inside() -> bool:
    """Is this process one of a world that a launcher started?"""
    return place() is not None


def rank() -> int:
    """This process's rank; rank 0 writes the results."""
    return (place() or ALONE).rank


def local_rank() -> int:
    """Its rank on this machine, and the number of its GPU."""
    return (place() or ALONE).local


def size() -> int:
    """How many processes there are."""
    return (place() or ALONE).size


def local_size() -> int:
    """How many of them are on this machine; 1 where no launcher says."""
    try:
        return max(1, int(os.environ[LOCAL_SIZE]))
    except (KeyError, ValueError):
        return 1


def usable_cores() -> int:
    """CPU cores that this process may use; at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone, however it ended (Linux only).

    For processes that must not outlive the one that started them: loaders, launched trainers.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal_number)


def drop_strays() -> None:
    """Remove variables from the environment that are not a complete set; libraries would believe them.

    That a process is number 0 of 1, as clusters tell every job, is true and not worth a line.
    """
    if inside():
        return
    found = {name: os.environ.pop(name) for name in (*NUMBERS, LOCAL_SIZE, *MPI) if name in os.environ}
    strays = {name: value for name, value in found.items() if name in NUMBERS or value not in ("0", "1")}
    if strays:
        told = ", ".join(f"{name}={value}" for name, value in strays.items())
        wanted = ", ".join((*NUMBERS, *MEETING))
        print(f"note: {told!a} in the environment is ignored: no launcher's set ({wanted})", file=sys.stderr)


def say_who_writes() -> None:
    """A process that writes nothing says so, unless a launcher has certainly started the one that writes."""
    if rank() > 0 and not any(name in os.environ for name in LAUNCHERS):
        print(
            f"note: this is process {rank()} of {size()} by RANK and WORLD_SIZE in the environment; "
            "process 0 writes the results",
            file=sys.stderr,
        )
