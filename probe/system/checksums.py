"""SHA256SUMS: what a folder's files were when they were written, so that later damage is noticed.

The format is that of `sha256sum`: `sha256sum -c SHA256SUMS` inside the folder says the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from backbones import reading
from probe.errors import UserError
from probe.system.atomic import write_atomic
from probe.system.cache_dir import OTHER_RUN, check_owner

FILE = "SHA256SUMS"
BLOCK = 1 << 20  # bytes


def file_digest(path: Path, limit: int = reading.WEIGHTS) -> str:
    """The SHA-256 of a file's bytes, read in blocks."""
    reading.regular(path, limit)
    state = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            state.update(buffer[:n])
    return state.hexdigest()


def record(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of these files of `folder` into its list."""
    lines = [f"{file_digest(folder / name)}  {name}\n" for name in sorted(names)]
    write_atomic(folder / FILE, "".join(lines))


def read(path: Path, limit: int = reading.TEXT) -> bytes:
    """The bytes of a small file of a run folder, checked; OSError if it cannot be read."""
    found = reading.content(path, limit)
    _check(path, lambda: hashlib.sha256(found).hexdigest())
    return found


def check(path: Path, limit: int = reading.WEIGHTS) -> None:
    """Raise if its folder's list says that `path` had other bytes, or if another user wrote either.

    Without a list, any bytes pass. Everything that is used from a run folder goes through here or `read`.
    """
    _check(path, lambda: file_digest(path, limit))


def _check(path: Path, digest: Callable[[], str]) -> None:
    listed = path.parent / FILE
    check_owner(path.parent, path, listed, way_out=OTHER_RUN)
    try:
        lines = reading.text(listed, reading.CHECKSUMS).splitlines()
        now = digest()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot check {path} by {listed}: {reason}; run it again") from error
    if f"{now}  {path.name}" not in lines:
        raise UserError(
            f"{path} is not as it was written: {listed.name} says otherwise; restore it, or run it again"
        )
