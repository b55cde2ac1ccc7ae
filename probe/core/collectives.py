"""The global batch on any number of processes, with gradients.

The convention, kept by every loss: **each process returns the loss of the whole (joined) batch**, and the
gradient it sends to its own rows is the sum over processes. Data-parallel training then averages parameter
gradients over processes, and that average is exactly the gradient of one process on the joined batch, also
when the last batches have unequal sizes. On one process all of this is the identity and costs nothing.
"""

from __future__ import annotations

import atexit
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_apart = 0  # for all threads: a backward pass on a GPU has its own
_together = 0


def processes() -> int:
    """How many processes train together; 1 when torch.distributed is not in use."""
    return dist.get_world_size() if not _apart and dist.is_available() and dist.is_initialized() else 1


@contextmanager
def apart() -> Iterator[None]:
    """Inside the block a process computes for itself alone: it may fail where others do not."""
    global _apart
    _apart += 1
    try:
        yield
    finally:
        _apart -= 1


@contextmanager
def together() -> Iterator[None]:
    """Inside the block all processes call the exact solvers alike, so that these may share the rows."""
    global _together
    _together += 1
    try:
        yield
    finally:
        _together -= 1


def sharing() -> int:
    """How many processes share the rows of an exact solve: 1 outside `together`."""
    return processes() if _together else 1


@functools.cache
def leave_at_exit() -> None:
    """Take this process out of its world before it ends: gloo's threads abort a process that just goes."""

    def leave() -> None:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    atexit.register(leave)


# What the backends say when another process is gone; they have no error class in common.
GONE = re.compile(r"gloo|nccl|(closed|reset) by peer|broken pipe|timed out", re.IGNORECASE)


def peer_lost(error: BaseException) -> bool:
    """Is this the error of a collective call after another process has died?"""
    return processes() > 1 and isinstance(error, RuntimeError) and GONE.search(str(error)) is not None


def sizes(x: Tensor) -> list[int]:
    """How many rows of x each process holds."""
    mine = torch.tensor([x.shape[0]], device=x.device)
    everyone = [torch.empty_like(mine) for _ in range(processes())]
    dist.all_gather(everyone, mine)
    return [int(n) for n in everyone]


class _Gather(torch.autograd.Function):
    """all_gather of unequal parts: padded to the longest, since the backends need equal shapes."""

    @staticmethod
    def forward(x: Tensor, lengths: list[int]) -> Tensor:
        longest = max(lengths)
        mine = x.new_zeros((longest, *x.shape[1:]))
        mine[: x.shape[0]] = x
        parts = [torch.empty_like(mine) for _ in lengths]
        dist.all_gather(parts, mine)
        return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, list[int]], output: Tensor) -> None:
        ctx.lengths = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        start = sum(ctx.lengths[: dist.get_rank()])
        return grad[start : start + ctx.lengths[dist.get_rank()]], None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad


def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows of every process in rank order, for tensors that have one row per sample; differentiable.

    >>> features, targets = gather(features, targets)
    """
    if processes() == 1:
        return tensors
    lengths = sizes(tensors[0])
    return tuple(_Gather.apply(t, lengths) for t in tensors)  # type: ignore[no-untyped-call]


def total(x: Tensor) -> Tensor:
    """The sum of x over processes; differentiable."""
    return x if processes() == 1 else _Sum.apply(x)  # type: ignore[no-untyped-call]


def largest(*numbers: int, device: torch.device) -> list[int]:
    """For each number the largest that any process has, so that all of them act alike."""
    if processes() == 1:
        return list(numbers)
    seen = torch.tensor(numbers, device=device)
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    return seen.tolist()


def drawn(rows: int, columns: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """rows x columns random numbers from 0 to 1: this process's rows of one draw for the joined batch.

    Any number of processes draws what one would. They are drawn where the generator lives, by default on
    `device`; that of process 0 decides.
    """
    where = device if generator is None else generator.device
    if processes() == 1:
        return torch.rand(rows, columns, generator=generator, device=where).to(device)
    lengths = sizes(torch.empty(rows, device=device))
    numbers = torch.rand(sum(lengths), columns, generator=generator, device=where).to(device)
    dist.broadcast(numbers, 0)
    mine: Tensor = numbers.split(lengths)[dist.get_rank()]
    return mine


def mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum w x / sum w over the rows of every process (w = 1 where none are given)."""
    if processes() == 1 and weights is None:
        return values.mean()
    weights = torch.ones_like(values) if weights is None else weights
    return total((weights * values).sum()) / total(weights.sum().detach())
