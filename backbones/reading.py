"""Reading files that people name: regular ones of a sane size, so that nothing hangs or fills the memory.

A pipe that nobody writes to would be waited for without end, and a device has no end at all. Refusals are
OSErrors with plain words, which every reader already turns into a line that names the file.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

TEXT = 64 << 20  # bytes of JSON or YAML, which take up to twenty times as many once parsed


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
    if (size := regular(path)) > limit:
        raise OSError(errno.EFBIG, f"it has {size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} are read")
    return path.read_bytes()
