"""Where bad input is tried: a process of its own that is watched for what the product promises never to do.

A case that hangs is killed after 20 seconds, one that takes more than 2 GB is found by the system's own mark
of the highest use, and one that writes outside the folders it was given, starts a program, opens a connection or
builds an object from a pickle is found by Python's audit events, which no code can go around unseen.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from kinds import Case

SECONDS = 20
MEMORY = 2 << 30
BEGIN_SECONDS = 120  # imports and what a family prepares once
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events that name a path which comes to be, goes or changes, and which of their arguments do.
CHANGES = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "sqlite3.connect": (0,),
}
NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.startfile", "socket.connect", "pickle.find_class")
HARMLESS = ("/dev/", "/proc/")


class Jail:
    """`jail(luck)` tries the case of `prepare(folder)` once, in the watched process."""

    def __init__(self, prepare: Callable[[Path], Case], folder: Path) -> None:
        self._prepare, self._folder = prepare, folder
        self._line: Connection | None = None
        self._process: Any = None

    def __call__(self, luck: Random) -> None:
        if self._line is None:
            self._start()
        assert self._line is not None
        number = luck.getrandbits(64)
        self._line.send(number)
        if not self._line.poll(SECONDS):
            self._stop()
            raise AssertionError(f"case {number}: no answer within {SECONDS} seconds")
        try:
            said = self._line.recv()
        except EOFError:
            self._stop()
            raise AssertionError(f"case {number}: the process died ({self._process.exitcode})") from None
        assert not said, f"case {number}: {said}"

    def _start(self) -> None:
        # A server that is forked from never runs threads, so no lock is inherited half-way.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["probe.cli", "jail"])
        self._line, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._prepare, self._folder), daemon=True
        )
        self._process.start()
        theirs.close()
        if not self._line.poll(BEGIN_SECONDS) or self._line.recv() != "ready":
            self._stop()
            raise AssertionError(f"{self._prepare.__module__} could not be prepared")

    def _stop(self) -> None:
        assert self._line is not None
        self._line.close()
        self._line = None
        self._process.kill()
        self._process.join()


def jailed(prepare: Callable[[Path], Case]) -> Callable[[Path], Case]:
    """`begin` of a row whose cases run behind bars; the folder is all that they may write to."""
    return lambda folder: Jail(prepare, folder)


def _serve(line: Connection, prepare: Callable[[Path], Case], folder: Path) -> None:
    watch = Watch(folder)
    sys.dont_write_bytecode = True
    _own_places(folder)
    case = prepare(folder)
    used = _peak()
    resource.setrlimit(resource.RLIMIT_AS, (_virtual() + 2 * MEMORY, resource.RLIM_INFINITY))
    line.send("ready")
    with suppress(EOFError):
        while True:
            line.send(_tried(case, Random(line.recv()), watch, used))


def _tried(case: Case, luck: Random, watch: Watch, used: int) -> str:
    """What went wrong, with its traceback; empty where the promise was kept."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest use counts from here
    with watch:
        try:
            case(luck)
        except BaseException:  # whatever it is, it is the finding
            return traceback.format_exc()
    if watch.seen:
        return f"it did what it must not: {watch.seen}"
    peak = _peak()
    return f"it took {(peak - used) >> 20} MB" if peak - used > MEMORY else ""


class Watch:
    """While it is entered, everything that happens outside `folder` is noted."""

    def __init__(self, folder: Path) -> None:
        self._inside = f"{folder.resolve()}{os.sep}"
        self._on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def __enter__(self) -> None:
        self.seen, self._on = [], True

    def __exit__(self, *_: object) -> None:
        self._on = False

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if not self._on:
            return
        if event in NEVER:
            self.seen.append(f"{event}{tuple(arguments)!r}"[:300])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._check(event, arguments[0])
        elif event in CHANGES:
            for place in CHANGES[event]:
                self._check(event, arguments[place])

    def _check(self, event: str, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            where = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a Path would open a hole in the watch
            if not where.startswith((self._inside, *HARMLESS)):
                self.seen.append(f"{event} {where}")


def _own_places(folder: Path) -> None:
    """Homes and caches inside the folder, and no network."""
    for name, place in {
        "HOME": "home",
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "home/.cache",
        "PROBE_CACHE": "cache",
        "HF_HOME": "home/hub",
        "TORCH_HOME": "home/torch",
    }.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / place)
    tempfile.tempdir = None
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    (folder / "here").mkdir(exist_ok=True)
    os.chdir(folder / "here")
    sys.stdin = io.StringIO()


def _peak() -> int:
    return _status("VmHWM")


def _virtual() -> int:
    return _status("VmSize")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))
