"""Writing files so that a reader never sees half of one, whatever happens to the writer."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probe.errors import UserError

TEMPORARY = ".tmp-"  # every unfinished file or folder carries this prefix, so that a later run can sweep it

WAYS_OUT = {
    errno.ENOSPC: "no space left{need}; free some, or choose another place",
    errno.EDQUOT: "disk quota reached{need}; free some, or choose another place",
    errno.EFBIG: "file size limit reached{need}; raise it (ulimit -f)",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission denied; choose another place",
    errno.EPERM: "permission denied; choose another place",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EEXIST: "a part of its path is a file, not a folder",
}


def temporary(final: Path) -> Path:
    """A fresh name beside `final`, hidden and recognisable as unfinished."""
    return final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}-{secrets.token_hex(4)}")


def flush_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def named_failures(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn the operating system's write errors into one line that names the file and the way out."""
    try:
        yield
    except OSError as error:
        need = f" (it needs {size / 1e6:.1f} MB)" if size else ""
        if error.errno not in WAYS_OUT:
            raise
        raise UserError(f"cannot write {path}: {WAYS_OUT[error.errno].format(need=need)}") from error


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` to `path`: a reader sees the old content or the new one, never a part."""
    payload = data.encode() if isinstance(data, str) else data
    staged = temporary(path)
    with named_failures(path, len(payload)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with staged.open("wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
            flush_folder(path.parent)
        finally:
            staged.unlink(missing_ok=True)


@contextmanager
def staged_folder(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block ends well, and vanishes when it does not.

    An older `final` is replaced as a whole.
    """
    staged = temporary(final)
    with named_failures(final):
        staged.mkdir(parents=True)
        try:
            yield staged
            _take_place(staged, final)
            flush_folder(final.parent)
            _sweep(final)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _take_place(staged: Path, final: Path) -> None:
    """Rename, moving an older folder out of the way; another writer may put its own there at any moment."""
    while True:
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


def _sweep(final: Path) -> None:
    """Remove what killed writers of `final` left beside it."""
    for left in final.parent.glob(f"{TEMPORARY}{glob.escape(final.name)}-*"):
        process = left.name.removeprefix(f"{TEMPORARY}{final.name}-").split("-")[0]
        if process.isdigit() and not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
