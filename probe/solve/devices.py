"""Where a solve runs: the device of its passes, that of its float64 numbers, and how blocks get there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CPU = torch.device("cpu")
WITHOUT_FLOAT64 = ("mps", "xpu")  # some of Intel's have it
BUDGET = 4 * 2**30  # bytes of features and logits kept in memory; beyond it, blocks are streamed
FREE_SHARE = 0.4  # of a GPU's free memory: once for the rows as they are stored, once rotated with logits


def exact_home(device: torch.device) -> torch.device:
    """Where the float64 numbers of a solve are: the device itself, or the CPU if it has none."""
    return CPU if device.type in WITHOUT_FLOAT64 else device


def budget_of(device: torch.device) -> int:
    """Bytes that features and logits may take there."""
    if device.type == "cuda" and torch.cuda.is_available():
        return int(FREE_SHARE * torch.cuda.mem_get_info(device)[0])
    return BUDGET


def exact_sum(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The sum in float64, or as exact as a device without float64 has it."""
    return x.sum(dim) if exact_home(x.device) != x.device else x.sum(dim, dtype=torch.float64)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Float32 products of NVIDIA GPUs with all 24 bits, or with TF32's 11 where that is `allowed`.

    Whatever the process has set before is put back.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def moved(blocks: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Each block on the device; on a GPU the next one is read and copied while the last one is worked on."""
    if device.type == "cuda" and torch.cuda.is_available():
        yield from _overlapped(blocks, device)
        return
    for block in blocks:
        yield block.to(device)


def _overlapped(blocks: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Pinned memory and a stream of its own for the copies; an event tells when a block may be used."""
    side = torch.cuda.Stream(device)
    waiting: tuple[Tensor, torch.cuda.Event] | None = None
    for block in blocks:
        if block.device.type == "cpu":
            block = block.pin_memory()
        with torch.cuda.stream(side):
            copy = block.to(device, non_blocking=True)
            ready = side.record_event()
        if waiting is not None:
            yield _usable(*waiting, device)
        waiting = copy, ready
    if waiting is not None:
        yield _usable(*waiting, device)


def _usable(copy: Tensor, ready: torch.cuda.Event, device: torch.device) -> Tensor:
    here = torch.cuda.current_stream(device)
    here.wait_event(ready)
    copy.record_stream(here)  # its memory is not given away while this stream may still read it
    return copy
