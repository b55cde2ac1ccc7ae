"""Writing files so that a reader never sees half of one, whatever happens to the writer."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probe.errors import UserError

TEMPORARY = ".tmp-"  # every unfinished file or folder carries this prefix, so that a later run can sweep it
OWNED = re.compile(
    rf"{re.escape(TEMPORARY)}(.+)-(\d+)@([^@]*)-[0-9a-f]+"
)  # final name, process, host: `temporary`
A_DAY = 86_400.0  # seconds
PRIVATE = 0o700  # features and predictions can reveal the images they came from

WAYS_OUT = {
    errno.ENOSPC: "no space left{need}; free some, or choose another place",
    errno.EDQUOT: "disk quota reached{need}; free some, or choose another place",
    errno.EFBIG: "file size limit reached{need}; raise it (ulimit -f)",
    errno.EIO: "the disk reports a failure (input/output error){need}; check it, or choose another place",
    errno.ESTALE: "the network file system lost it; mount it again, or choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission denied; choose another place",
    errno.EPERM: "permission denied; choose another place",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EEXIST: "a part of its path is a file, not a folder",
}


def temporary(final: Path) -> Path:
    """A new name beside `final`: hidden, recognisable as unfinished, and with the process that writes it."""
    return final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}@{_host()}-{secrets.token_hex(4)}")


def _host() -> str:
    return socket.gethostname()[:32]  # a part of file names, which have a limit


def make_folder(folder: Path) -> None:
    """Make `folder`, and what is missing above it, private to the user."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=PRIVATE, exist_ok=True)


def flush_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system can flush a folder
            raise
    finally:
        os.close(descriptor)


@contextmanager
def named_failures(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn the operating system's write errors into one line that names the file and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno not in WAYS_OUT:
            raise
        need = f" (it needs {amount(size)})" if size else ""
        raise UserError(f"cannot write {path}: {WAYS_OUT[error.errno].format(need=need)}") from error


def amount(size: float) -> str:
    """Bytes for people: `812 bytes`, `3.1 kB`, `97.8 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` to `path`: a reader sees the old content or the new one, never a part."""
    payload = data.encode() if isinstance(data, str) else data
    staged = temporary(path)
    with named_failures(path, len(payload)):
        make_folder(path.parent)
        try:
            with staged.open("wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
            flush_folder(path.parent)
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)
    _sweep(path)


@contextmanager
def staged_file(final: Path) -> Iterator[Path]:
    """A temporary name for a file that is written in pieces: it becomes `final` when the block ends well."""
    staged = temporary(final)
    with named_failures(final):
        make_folder(final.parent)
        try:
            yield staged
            staged.replace(final)
            flush_folder(final.parent)
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)
    _sweep(final)


@contextmanager
def staged_folder(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block ends well, and vanishes when it does not.

    An older `final` is replaced as a whole.
    """
    staged = temporary(final)
    with named_failures(final):
        make_folder(staged)
        try:
            yield staged
            with named_failures(final, sum(path.stat().st_size for path in staged.rglob("*"))):
                _take_place(staged, final)
                flush_folder(final.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    _sweep(final)


def _take_place(staged: Path, final: Path) -> None:
    """Rename, moving an older folder out of the way; another writer may put its own there at any moment."""
    while not _exchange(staged, final):
        old = temporary(final)
        with suppress(FileNotFoundError):
            final.rename(old)
        try:
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                with suppress(OSError):
                    old.rename(final)
                raise
        shutil.rmtree(old, ignore_errors=True)
        if not staged.exists():
            return  # else another writer was faster, and its folder is the older one now


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, so that neither is ever missing; False where that is not possible."""
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux
        return False
    return renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def _sweep(final: Path) -> None:
    """Remove what killed writers of `final` left beside it."""
    with suppress(OSError):
        for left in final.parent.glob(f"{glob.escape(f'{TEMPORARY}{final.name}-')}*"):
            if abandoned(left):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def name_to_be(path: Path) -> str | None:
    """The final name of a temporary file or folder; None if `temporary` did not make it."""
    named = OWNED.fullmatch(path.name)
    return named[1] if named else None


def abandoned(path: Path) -> bool:
    """Is this temporary file or folder one of ours, and its writer gone?

    Other programs may use similar names; theirs are never removed. A writer on another machine is assumed to
    be alive for a day.
    """
    named = OWNED.fullmatch(path.name)
    if named is None:
        return False
    if named[3] == _host():
        return not alive(int(named[2]))
    try:
        return time.time() - path.lstat().st_mtime > A_DAY
    except OSError:  # gone by itself
        return False


def alive(process: int) -> bool:
    """Does this machine have a process of that number?"""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
