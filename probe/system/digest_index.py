"""Content digests, remembered by file state, so that an unchanged file is hashed once and not every run.

The idea of git's index: a file whose path, size, mtime, ctime and inode are as they were has the content it
had. The memory is one SQLite file in the cache, each row with a checksum of its own. It is an aid, never a
duty: when it cannot be read or written the digests are computed anew, and a damaged file is thrown away.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from backbones.reading import LASTING
from probe.errors import UserError
from probe.system.atomic import make_folder
from probe.system.cache_dir import cache_root, check_owner
from probe.system.progress import bar
from probe.system.world import usable_cores

NAME = "digests-2.sqlite"  # the number is the format's
PATIENCE = 2.0  # seconds before a progress bar shows
SAVE_EVERY = 10.0  # seconds between saves, so that a killed run keeps most of its work
RACY = 2_000_000_000  # ns: a file this young may change again within one tick of its file system's clock
SEAL = 16  # bytes of a row's checksum, which follows its digest
BATCH = 64  # files a task: a task a file would cost more than hashing a small image

T = TypeVar("T")


class FileState(NamedTuple):
    """What the file system says about a file; two states that are equal stand for equal content."""

    size: int
    mtime: int  # ns
    ctime: int  # ns
    inode: int

    def same_file(self, other: FileState) -> bool:
        """Is it the same file with the same content, whatever has happened to its mode or its links?"""
        return self._replace(ctime=0) == other._replace(ctime=0)


def digests(
    paths: Sequence[Path],
    compute: Callable[[Path], bytes],
    *,
    lengths: Sequence[int],
    key: str = "",
    what: str = "hashing the images",
    unreadable: bytes | None = None,
    cache: str | Path | None = None,
) -> list[bytes]:
    """`compute(path)` for every path, remembered in `cache`.

    `lengths` are the bytes each digest must have (a file of many images has many), and `key` tells apart
    several digests of the same file. `unreadable` is the digest of a file that cannot be read, for a
    reason in LASTING; without it, such a file is an error. It is never remembered: the file may come back in
    the state it had.
    """

    def compute_or_none(path: Path) -> bytes | None:
        return _tried(compute, path, must=unreadable is None)

    names = [_name(path, key) for path in paths]
    tried = ((i, _tried(file_state, path, must=unreadable is None)) for i, path in enumerate(paths))
    states = {i: state for i, state in tried if state is not None}
    index = cache_root(cache) / NAME
    known = _recall(index, names)
    recalled = {
        i: known[names[i]][1]
        for i, state in states.items()
        if names[i] in known and known[names[i]][0] == state and len(known[names[i]][1]) == lengths[i]
    }
    found = dict.fromkeys(range(len(paths)), unreadable or b"") | recalled
    missing = [i for i in states if i not in recalled]
    fresh: list[tuple[str, FileState, bytes]] = []
    saved_at = time.monotonic()
    for i, digest in _computed(missing, paths, compute_or_none, what):
        if digest is not None:
            found[i] = digest
            fresh.append((names[i], states[i], digest))
        if time.monotonic() - saved_at > SAVE_EVERY:
            _remember(index, fresh)
            fresh, saved_at = [], time.monotonic()
    _remember(index, fresh)
    return [found[i] for i in range(len(paths))]


def forget(path: Path, *, key: str = "", cache: str | Path | None = None) -> None:
    """The remembered digest is wrong, though nothing that can be asked of the file shows it."""
    index = cache_root(cache) / NAME
    with suppress(sqlite3.Error, OSError), _opened(index) as connection, connection:
        connection.execute("DELETE FROM digest WHERE name = ?", (_name(path, key),))


def _name(path: Path, key: str) -> str:
    return f"{path.absolute()}\0{key}"


def _tried(read: Callable[[Path], T], path: Path, *, must: bool) -> T | None:
    """`read(path)`, or None where the file cannot be read and need not be.

    Only what is the matter with the file itself counts: too many open files or a failing disk would make
    every image unreadable, and the run one about no images.
    """
    try:
        return read(path)
    except OSError as error:
        if not must and error.errno in LASTING:
            return None
        raise UserError(
            f"cannot read {path}: {error.strerror or error}; was it moved while it was being read?"
        ) from error


def file_state(path: Path) -> FileState:
    """The state of a file now; OSError where it cannot be asked."""
    stat = path.stat()
    inode = stat.st_ino & (2**63 - 1)  # SQLite's integers are signed
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, inode)


def _computed(
    missing: list[int], paths: Sequence[Path], compute: Callable[[Path], T], what: str
) -> Iterator[tuple[int, T]]:
    """Digests in order, by threads (hashing releases the interpreter lock), with a bar if it takes long."""
    batches = [missing[i : i + BATCH] for i in range(0, len(missing), BATCH)]
    if len(batches) < BATCH:  # few files may be large ones: share them out singly
        batches = [[i] for i in missing]
    began, done = time.monotonic(), 0
    advance: Callable[[int], None] | None = None
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(min(32, usable_cores())))
        try:
            for batch, values in zip(
                batches, pool.map(lambda batch: [compute(paths[i]) for i in batch], batches), strict=True
            ):
                yield from zip(batch, values, strict=True)
                done += len(batch)
                if advance is not None:
                    advance(len(batch))
                elif time.monotonic() - began > PATIENCE:
                    advance = stack.enter_context(bar(what, len(missing), "files"))
                    advance(done)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _opened(index: Path) -> Iterator[sqlite3.Connection]:
    make_folder(index.parent)
    with closing(sqlite3.connect(index, timeout=5)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS digest (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER,"
            " ctime INTEGER, inode INTEGER, digest BLOB) WITHOUT ROWID"
        )
        yield connection


def _recall(index: Path, names: Sequence[str]) -> dict[str, tuple[FileState, bytes]]:
    check_owner(index.parent, index)
    try:
        with _opened(index) as connection:
            return dict(_rows(connection, names))
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        _discard_if_damaged(index, error)
        return {}


def _rows(
    connection: sqlite3.Connection, names: Sequence[str]
) -> Iterator[tuple[str, tuple[FileState, bytes]]]:
    for name in names:
        row = connection.execute("SELECT * FROM digest WHERE name = ?", (name,)).fetchone()
        if row is not None:
            yield name, _checked(*row)


def _checked(
    name: str, size: int, mtime: int, ctime: int, inode: int, kept: bytes
) -> tuple[FileState, bytes]:
    """What a row says; ValueError if it is not what was written."""
    state, digest = FileState(size, mtime, ctime, inode), bytes(kept[:-SEAL])
    if bytes(kept[-SEAL:]) != _seal(name, state, digest):
        raise ValueError("a row does not match its checksum")
    return state, digest


def _seal(name: str, state: FileState, digest: bytes) -> bytes:
    return hashlib.sha256(repr((name, *state)).encode("utf-8", "surrogatepass") + digest).digest()[:SEAL]


def damage(root: Path) -> tuple[Path, str] | None:
    """What is wrong with the memory in the cache `root`, if anything; for `probe cache verify`."""
    index = root / NAME
    if not index.is_file():
        return None
    try:
        with closing(
            sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        ) as connection:
            (state,) = connection.execute("PRAGMA integrity_check").fetchone()
            if state != "ok":
                return index, state.splitlines()[0]
            for row in connection.execute("SELECT * FROM digest"):
                _checked(*row)
    except (sqlite3.Error, ValueError, TypeError) as error:
        return index, str(error)
    return None


def _remember(index: Path, fresh: Sequence[tuple[str, FileState, bytes]]) -> None:
    """Store what was computed, but no file so young that it may yet change under the same time stamp."""
    now = time.time_ns()
    rows = [
        (name, *state, digest + _seal(name, state, digest))
        for name, state, digest in fresh
        if now - max(state.mtime, state.ctime) > RACY
    ]
    if not rows:
        return
    try:
        with _opened(index) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO digest VALUES (?, ?, ?, ?, ?, ?)", rows)
    except (sqlite3.Error, OSError) as error:
        _discard_if_damaged(index, error)


def _discard_if_damaged(index: Path, error: Exception) -> None:
    # "not a database" and "malformed" are plain DatabaseErrors; busy, read-only and full are a subclass.
    if type(error) in (sqlite3.DatabaseError, ValueError, TypeError):
        with suppress(OSError):
            index.unlink()
