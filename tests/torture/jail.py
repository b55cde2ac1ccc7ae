"""Where bad input is tried: a process that is watched for what the product promises never to do.

A try that takes more than 2 GB is found by the system's own mark of the highest use. One that writes outside
the folder it was given, starts a program, opens a connection or builds an object from a pickle is found by
Python's audit events, which no Python code goes around unseen. One that hangs is killed by the runner.
"""

from __future__ import annotations

import io
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.torture.kinds import Case

SECONDS = 20.0  # that a try may take
MEMORY = 2 << 30
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
NEVER = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class")
HARMLESS = ("/dev/", "/proc/")


def jailed(prepare: Callable[[Path], Case]) -> Callable[[Path], Case]:
    """`begin` of a row whose tries are watched; the folder is all that they may write to."""

    def begin(folder: Path) -> Case:
        _settle(folder)
        case, watch = prepare(folder), Watch(folder)
        used = _status("VmHWM")
        # Far above what is allowed, so that what takes it all fails here and not the machine.
        resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + 4 * MEMORY, resource.RLIM_INFINITY))

        def tried(luck: Random) -> None:
            Path("/proc/self/clear_refs").write_text("5")  # the highest use counts from here
            with watch:
                case(luck)
            assert not watch.seen, f"it did what it must not: {watch.seen}"
            taken = _status("VmHWM") - used
            assert taken < MEMORY, f"it took {taken >> 20} MB"

        return tried

    return begin


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
            where = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - it asks the file system nothing
            if not where.startswith((self._inside, *HARMLESS)):
                self.seen.append(f"{event} {where}")


def _settle(folder: Path) -> None:
    """Homes and caches inside the folder, no network, and the folder `here` to stand in."""
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
    os.environ |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    sys.stdin = io.StringIO()
    (folder / "here").mkdir()
    os.chdir(folder / "here")


def _status(field: str) -> int:
    """A line of the process's own account, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))
