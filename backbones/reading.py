"""Reading files that people name: regular ones of a sane size, so that nothing hangs or fills the memory.

A pipe that nobody writes to would be waited for without end, and a device has no end at all. Refusals are
OSErrors with plain words, which every reader already turns into a line that names the file.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from pathlib import Path

TEXT = 64 << 20  # bytes of JSON or YAML, which take up to twenty times as many once parsed
BLOCK = 1 << 20  # bytes hashed at a time
# What the file system says about the file itself. Anything else is the machine's state and will pass.
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


def regular(path: Path) -> int:
    """The size of a file in bytes; OSError where it is missing or no regular file (links are followed)."""
    try:
        state = path.stat()
    except ValueError as error:  # a NUL in its name
        raise OSError(errno.EINVAL, "no file can have this name") from error
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    return state.st_size


def content(path: Path, limit: int = TEXT) -> bytes:
    """All bytes of a regular file of at most `limit`."""
    _check_size(path, limit)
    return path.read_bytes()


def sha256(path: Path, limit: int) -> bytes:
    """The digest of `content(path, limit)`, in a constant amount of memory."""
    _check_size(path, limit)
    with path.open("rb", buffering=0) as file:
        state = hashlib.sha256()
        while block := file.read(BLOCK):
            state.update(block)
    return state.digest()


def _check_size(path: Path, limit: int) -> None:
    if (size := regular(path)) > limit:
        raise OSError(errno.EFBIG, f"it has {size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} are read")
