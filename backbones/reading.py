"""Reading files that people name: regular ones of a sane size, so that nothing hangs or fills the memory.

Reading a pipe that nobody writes to would wait forever, and a device has no end. Refusals are OSErrors with a
plain message, which every reader already turns into a line that names the file. What a library
reads by itself (weights, parquet) is at least asked for with `regular` before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from backbones.errors import UserError

# The largest file that is read or hashed whole, in bytes, by its kind: far above any that is meant so.
RECIPE = 1 << 20
CHECKSUMS = 1 << 20  # SHA256SUMS: one line for each file of a run folder
TEXT = 64 << 20  # JSON or YAML, which take up to twenty times as many once parsed
LOG = 1 << 30  # log.jsonl: one line for each step
IMAGE = 1 << 30
PREDICTIONS = 1 << 30  # of a run: about 20 MB for ImageNet and five seeds
WEIGHTS = 200 << 30  # a head (which can hold every training feature), a backbone, a checkpoint
BLOCK = 1 << 20  # bytes hashed at a time
GREW = "it grew while it was being read"
# Errors that are about the file itself. Any other is about the state of the machine, and will pass.
LASTING = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,  # not a regular file
    errno.EFBIG,
}


def expanded(path: str | Path, way_out: str = "write the path out") -> Path:
    """`path` with `~` as the user's home; one line where no such home is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f'"{path}": no home folder is known for this ~; {way_out}') from error


def regular(path: Path, limit: int | None = None) -> int:
    """The size of a file in bytes; OSError where it is missing, not a regular file or larger than `limit`.

    Links are followed.
    """
    try:
        return _size(path.stat(), limit)
    except ValueError as error:  # a NUL in its name
        raise OSError(errno.EINVAL, "no file can have this name") from error


def content(path: Path, limit: int = TEXT) -> bytes:
    """All bytes of a regular file of at most `limit`."""
    with os.fdopen(_opened(path, limit), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if len(found := file.read(size + 1)) > size:  # or it tells no size at all
            raise OSError(errno.EFBIG, GREW)
    return found


def sha256(path: Path, limit: int) -> bytes:
    """The digest of `content(path, limit)`, in a constant amount of memory."""
    state, seen = hashlib.sha256(), 0
    with os.fdopen(_opened(path, limit), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK):
            seen += len(block)
            if seen > size:
                raise OSError(errno.EFBIG, GREW)
            state.update(block)
    return state.digest()


def _opened(path: Path, limit: int) -> int:
    """A descriptor of a regular file of at most `limit` bytes.

    What stands there may be exchanged for a pipe in between: opening must not wait, and the opened file is
    asked again.
    """
    regular(path, limit)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _size(os.fstat(descriptor), limit)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def text(path: Path, limit: int = TEXT) -> str:
    """The same as text; what is not UTF-8 is a ValueError."""
    return content(path, limit).decode("utf-8")


def regular_files(folder: Path) -> None:
    """OSError that names the first entry of a folder which is a pipe or a device: a library may open any."""
    for path in sorted(folder.iterdir()):
        with suppress(IsADirectoryError, FileNotFoundError):  # a link into nowhere is not read
            try:
                regular(path)
            except OSError as error:
                raise type(error)(error.errno, f"{path.name}: {error.strerror}") from error


def _size(state: os.stat_result, limit: int | None = None) -> int:
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    size = state.st_size
    if limit is not None and size > limit:
        raise OSError(errno.EFBIG, f"it has {size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} are read")
    return size
