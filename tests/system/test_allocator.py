"""Freed memory serves the next step instead of going back to the system."""

import subprocess
import sys

SCRIPT = """
import resource, sys
import torch
from probe.system.allocator import keep_freed_memory

assert keep_freed_memory() or sys.argv[1] == "returned"
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
steps = []
for _ in range(8):
    before = faults()
    tensors = [torch.ones(25_000_000) for _ in range(3)]  # 100 MB each: above what glibc ever keeps by itself
    del tensors
    steps.append(faults() - before)
print(*steps)
"""


def pages(*, kept: bool) -> list[int]:
    """Fresh pages of each of eight equal steps, in a process of its own."""
    script = SCRIPT if kept else SCRIPT.replace("keep_freed_memory()", "False", 1)
    command = [sys.executable, "-c", script, "kept" if kept else "returned"]
    return [int(word) for word in subprocess.check_output(command, text=True).split()]


def test_a_step_reuses_the_memory_of_the_step_before_it() -> None:
    first, *_, last = pages(kept=True)  # the heap grows for a few steps until it holds all of them
    assert last < first / 100


def test_without_it_every_step_takes_fresh_pages() -> None:
    first, *later = pages(kept=False)
    assert min(later) > first / 2


HELD = """
import torch
from probe.system.allocator import keep_freed_memory, return_freed_memory

def held():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

keep_freed_memory()
before = held()
tensors = [torch.ones(25_000_000) for _ in range(3)]
last = torch.ones(1_000)  # stands above them in the heap, whose end it holds up
del tensors
kept = held() - before
return_freed_memory()
print(kept, held() - before)
"""


def test_what_is_kept_goes_back_where_a_run_ends() -> None:
    said = subprocess.check_output([sys.executable, "-c", HELD], text=True).split()
    kept, left = (int(kilobytes) for kilobytes in said)
    assert kept > 200_000
    assert left < 50_000
