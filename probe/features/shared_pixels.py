"""Memory that decoding processes write pixels into and a device copies from.

A data loader would send each batch through a file in /dev/shm (64 MB in a container, by default) and copy it
into page-locked memory. Here every batch has its place in one block that all processes share from the start
and that is page-locked once.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from probe.features.batches import BatchRequest

log = logging.getLogger("probe.features")


@dataclass
class PixelBuffers:
    """As many places for a batch as can be in use at once; a place is free again when its batch is done."""

    places: Tensor  # number x batch x size x size x 3, uint8
    free: deque[int] = field(default_factory=deque)

    @classmethod
    def for_batches(cls, number: int, batch: int, size: int) -> PixelBuffers:
        """`number` places for batches of so many square images."""
        shape = (number, batch, size, size, 3)
        return cls(_shared(torch.Size(shape).numel()).view(shape), deque(range(number)))

    def placed(self, requests: Iterable[BatchRequest]) -> Iterator[BatchRequest]:
        """The same requests, each with a place of its own. Drawn lazily: batches in flight are bounded."""
        for request in requests:
            yield request._replace(place=self.free.popleft())

    def pixels(self, place: int, n: int) -> Tensor:
        """The first n images of a place: n x 3 x size x size, channels last."""
        return self.places[place, :n].permute(0, 3, 1, 2)

    def page_locked(self, device: torch.device) -> PageLock:
        """Lock the whole block, so that copies to the device run beside everything else."""
        return PageLock(self.places, device)


class PageLock:
    """Keeps memory page-locked for a GPU until closed; without it, copies are right all the same."""

    def __init__(self, memory: Tensor, device: torch.device) -> None:
        self._address: int | None = None
        if device.type != "cuda":
            return
        failed = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if failed:  # a limit on locked memory, say
            log.warning(
                "cannot page-lock %d MB (error %d): copies will be slower", memory.nbytes >> 20, failed
            )
        else:
            self._address = memory.data_ptr()

    def close(self) -> None:
        if self._address is not None:
            torch.cuda.cudart().cudaHostUnregister(self._address)
            self._address = None


def _shared(size: int) -> Tensor:
    """`size` bytes that the processes of a data loader share with this one."""
    if multiprocessing.get_start_method() == "fork":
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)  # children inherit it
    return torch.empty(size, dtype=torch.uint8).share_memory_()
