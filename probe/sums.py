"""SHA256SUMS: what a folder's files were when they were written, so that later damage is noticed.

The format is that of `sha256sum`: `sha256sum -c SHA256SUMS` inside the folder says the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from probe.errors import UserError
from probe.files import write_atomic

FILE = "SHA256SUMS"
BLOCK = 1 << 20  # bytes


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, read in blocks."""
    state = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            state.update(buffer[:n])
    return state.hexdigest()


def record(folder: Path, names: Iterable[str]) -> None:
    """Note what these files of `folder` are now."""
    lines = [f"{file_digest(folder / name)}  {name}\n" for name in sorted(names)]
    write_atomic(folder / FILE, "".join(lines))


def check(path: Path) -> None:
    """Raise if its folder's list says that `path` had other bytes; without a list, all is well."""
    listed = path.parent / FILE
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
        now = file_digest(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"cannot check {path} by {listed}: {error}; run it again") from error
    if f"{now}  {path.name}" not in lines:
        raise UserError(
            f"{path} is not as it was written: {listed.name} says otherwise; restore it, or run it again"
        )
