"""Which run is computing which shard, so that runs on one cache share the work instead of repeating it.

Locks save work; they do not guard data. Shards are deterministic, renames are atomic and the manifest is
created once, so two runs that ignore each other end with the same entry. That is why, in every case of doubt
below (no locking on this file system, an owner that cannot be seen), the run carries on.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from probe.system.atomic import alive

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
LOCK_NAME = re.compile(r"\.lock(-\d{5,})?")  # the file of record locks, or the mark of a shard
STALE_SECONDS = 600.0  # an owner on another machine is believed this long


class FolderLocks:
    """Locks on the shards of one entry; all of them end with the process, however it ends.

    The operating system's record locks are used where the file system has them: they vanish with their
    owner and a forked loader process does not inherit them. Elsewhere a lock is a symbolic link to
    `pid@host`, made in one atomic step, which anyone may remove when that process is gone.

    >>> with FolderLocks(folder) as locks:
    ...     if locks.acquire(3): ...
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._marks: set[int] = set()
        if fcntl is not None:
            with suppress(OSError):
                self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> FolderLocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shard in tuple(self._marks):
            self.release(shard)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def acquire(self, shard: int) -> bool:
        """True if the shard is ours to compute; never waits."""
        if self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, shard)
                return True
            except (BlockingIOError, PermissionError):
                return False
            except OSError:  # no locks on this file system
                os.close(self._file)
                self._file = None
        return self._mark(shard)

    def release(self, shard: int) -> None:
        """Let other runs have the shard."""
        if shard in self._marks:
            self._marks.discard(shard)
            self._path(shard).unlink(missing_ok=True)
        elif self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, shard)

    def _path(self, shard: int) -> Path:
        return self._folder / f"{LOCK}-{shard:05d}"

    def _mark(self, shard: int) -> bool:
        path = self._path(shard)
        for _ in range(2):
            try:
                path.symlink_to(f"{os.getpid()}@{socket.gethostname()}")
            except FileExistsError:
                if not _abandoned(path):
                    return False
                path.unlink(missing_ok=True)
            except OSError:  # no symbolic links either
                return True
            else:
                self._marks.add(shard)
                return True
        return False


def _abandoned(mark: Path) -> bool:
    """True if the process that made the mark is gone, or cannot be seen and the mark is old."""
    try:
        pid, _, host = str(mark.readlink()).partition("@")
        age = time.time() - mark.lstat().st_mtime
    except OSError:  # its owner has just released it
        return True
    if age > STALE_SECONDS or not pid.isdigit():
        return True
    return host == socket.gethostname() and not alive(int(pid))
