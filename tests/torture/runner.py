"""One row's tries in a process of its own: a try that hangs or dies is lost, and the next one goes on."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.torture.kinds import Case, Torture
from tests.torture.rows import rows

BEGIN_SECONDS = 300.0  # for what all tries of a row share
BREATH = 0.25  # seconds between two looks at a try, for the progress bar
PRELOADED = ["tests.torture.preloaded"]  # so that a process costs a fork and not four seconds of imports
ENDLESS = range(1 << 31)


@dataclass(frozen=True)
class Lost:
    """A try that broke the promise; row, seed and number repeat it."""

    row: str
    seed: int
    number: int
    why: str  # one line


@dataclass
class Count:
    """How a row fared."""

    row: Torture
    tried: int = 0
    lost: list[Lost] = field(default_factory=list)

    @property
    def survived(self) -> int:
        return self.tried - len(self.lost)

    def add(self, seed: int, number: int, why: str | None, faults: int = 1) -> None:
        self.tried += faults
        if why is not None:
            self.lost.append(Lost(self.row.name, seed, number, why))


def context() -> Any:
    """Where processes come from: a server that has loaded the libraries and started no thread."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    tests, before = str(ROOT), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, before]))  # where it finds them
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return found


def warm_up() -> None:
    """Have the server load its libraries, so that no row pays for it."""
    process = context().Process(target=int)
    process.start()
    process.join()


def run(
    row: Torture,
    seed: int,
    *,
    until: float = math.inf,
    end: float = math.inf,
    numbers: range = ENDLESS,
    look: Callable[[], None] = lambda: None,
) -> Count:
    """Begin no try but the first after `until`, and drop any other that is not over at `end`.

    Both are times of `time.monotonic`; no row goes untried because the rows before it took too long.
    `look` is called now and then.
    """
    count, worker = Count(row), None
    with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder:
        try:
            for number in numbers:
                if count.tried and time.monotonic() >= min(until, end):
                    break
                last, why = (end if count.tried else math.inf), None
                if worker is None:
                    worker = _Worker(row, Path(folder) / str(number), seed)
                    why = worker.answer(BEGIN_SECONDS, last, look)
                broken = why is not None  # what all tries share cannot be made
                if not broken:
                    why = worker.tries(number, last, look)
                if time.monotonic() >= last:
                    break
                count.add(seed, number, f"preparing: {why}" if broken else why, worker.faults)
                if broken:
                    break
                if not worker.well:
                    worker.stop()
                    worker = None
        finally:
            if worker is not None:
                worker.stop()
    return count


class _Worker:
    """The process that prepares a row's world and does what it is told, number by number."""

    def __init__(self, row: Torture, folder: Path, seed: int) -> None:
        self.row, self.well = row, True
        self.faults = 1  # that the last try held
        folder.mkdir(parents=True)
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = context().Process(target=_work, args=(row.name, folder, seed, theirs))
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        self.pipe.close()
        if self.well:
            self.process.join(2.0)
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def tries(self, number: int, end: float, look: Callable[[], None]) -> str | None:
        self.pipe.send(number)
        return self.answer(self.row.timeout, end, look)

    def answer(self, seconds: float, end: float, look: Callable[[], None]) -> str | None:
        """None if all was well, else why not."""
        last = time.monotonic() + seconds
        while time.monotonic() < min(last, end):
            look()
            if self.pipe.poll(BREATH):
                try:
                    why, faults = self.pipe.recv()
                    self.faults = max(1, faults)
                    return why
                except EOFError:
                    self.faults = 1
                    self.well = False
                    self.process.join()
                    return f"the process died with exit code {self.process.exitcode}"
        self.well = False
        return f"no end after {seconds:.0f} s"


def _work(name: str, folder: Path, seed: int, pipe: Connection) -> None:
    """In the process: prepare, then a try for every number that arrives."""
    import torch

    torch.set_num_threads(1)
    silence = os.open(os.devnull, os.O_WRONLY)  # what is said inside is heard by the cases that listen
    for number in (1, 2):
        os.dup2(silence, number)
    (row,) = (row for row in rows() if row.name == name)
    cases: list[Case] = []
    pipe.send(_answer(lambda: cases.append(row.begin(folder))))
    while cases:
        try:
            luck = row.luck(seed, pipe.recv())
        except EOFError:
            return
        pipe.send(_answer(lambda luck=luck: cases[0](luck)))


def _answer(attempt: Callable[[], int | None]) -> tuple[str | None, int]:
    """Why it was lost, if it was, and how many faults there were."""
    try:
        return None, attempt() or 1
    except BaseException as error:
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else ''}", 1
