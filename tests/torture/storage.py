"""Disks that misbehave: every byte that is kept passes `os.fsync`, so that is where they say no."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.torture.tiny import hasten

Flush = Callable[[int], None]


@dataclass(frozen=True)
class Flushes:
    """From the `number`-th flush on the disk fails (a full one; `once`: one with a bad spot), or is slow.

    Called, it changes this process for ever, which suits a process that is about to become a command.
    """

    number: int = 0  # 0: none fails
    error: int = 0
    once: bool = False
    delay: float = 0.0  # seconds
    counted: Path | None = None  # a file that gets a byte a flush

    def __call__(self) -> None:
        hasten()
        os.fsync = self._instead_of(os.fsync)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Only inside the block."""
        flush = os.fsync
        os.fsync = self._instead_of(flush)
        try:
            yield
        finally:
            os.fsync = flush

    def _instead_of(self, flush: Flush) -> Flush:
        seen = 0

        def behave(descriptor: int) -> None:
            nonlocal seen
            seen += 1
            time.sleep(self.delay)
            if self.counted is not None:
                with self.counted.open("ab") as file:
                    file.write(b".")
            if self.number and (seen == self.number or (seen > self.number and not self.once)):
                raise OSError(self.error, os.strerror(self.error))
            flush(descriptor)

        return behave


@dataclass(frozen=True)
class FileSizeLimit:
    """`ulimit -f`: the operating system itself says no, in the middle of a write."""

    bytes: int

    def __call__(self) -> None:
        hasten()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.bytes, self.bytes))
