"""The processes of a launcher (`--gpus P`, torchrun) as one world that shares the rows of exact solves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from probe.core import collectives
from probe.system import world

PATIENCE = timedelta(hours=2)  # for a process that decodes, renders or saves while the others wait


@contextmanager
def rows_shared() -> Iterator[None]:
    """Inside the block each process of the world reads and solves its share of the rows; alone: all of them.

    Every process must make the same calls. One that dies ends the others: their next collective call fails,
    and the command says so in one line.
    """
    if world.size() == 1:
        yield
        return
    join()
    with collectives.together():
        yield


def join() -> None:
    """Meet the other processes, once; sums of CPU tensors go through gloo, those of GPUs through NCCL."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        gpus = torch.cuda.is_available()
        if gpus:
            torch.cuda.set_device(world.local_rank() % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
        collectives.leave_at_exit()
