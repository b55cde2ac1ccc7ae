"""What is in the cache: list it, verify it, remove from it. No torch, so that `probe cache ls` is instant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError, nearest
from probe.features.cache_key import ENTRY_NAME, SHORT, VIEW, CacheKey
from probe.features.entry_format import (
    MANIFEST,
    SHARD_NAME,
    Damage,
    in_parallel,
    made_here,
    read_manifest,
    shard_damage,
)
from probe.features.views import CENTER
from probe.system import atomic, digest_index
from probe.system.cache_dir import cache_root
from probe.system.sealed_json import unsealed

STATES = ("complete", "partial", "damaged")
NAMED_VIEW = re.compile(rf"-(flip|crop-\d+)-[0-9a-f]{{{SHORT}}}$")  # in the name of an entry's folder


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache, as `probe cache ls` shows it."""

    name: str  # the folder's
    state: str  # one of STATES; "complete" is judged by names and sizes: `verify` reads every byte
    rows: int
    dim: int
    dtype: str
    view: str  # what was shown of each image: center, flip, crop-1, ...
    bytes: int
    date: datetime  # of the last change
    path: Path


# File lists of the hub, the script of pages, accuracies that a forecast needs.
SEALED = ("hub/*/*.json", "report/*.json", "zero-shot/*.json")


def entries(cache: str | Path | None = None) -> list[CacheEntry]:
    """Every entry, newest first."""
    listed = [_listed(folder) for folder in folders(cache_root(cache))]
    return sorted(listed, key=lambda entry: entry.date, reverse=True)


def verify(cache: str | Path | None = None, names: Sequence[str] = ()) -> list[Damage]:
    """Read every byte of the named entries (or all) and return what is damaged; unfinished is not damaged."""
    root = cache_root(cache)
    found = [problem for folder in chosen(root, names) for problem in _problems(folder)]
    return found if names else [*found, *_problems_aside(root)]


def remove(
    cache: str | Path | None = None, names: Sequence[str] = (), *, everything: bool = False
) -> list[str]:
    """Remove entries by name or the start of one, or everything; returns the names removed."""
    root = cache_root(cache)
    if not names and not everything:
        raise UserError("say which cache entries to remove, by name or the start of one, or all of them")
    gone = []
    for folder in chosen(root, names):
        doomed = atomic.temporary(folder)
        with atomic.named_failures(folder):
            folder.rename(doomed)  # the entry vanishes at once, also if removing its files takes a while
            _clear(doomed, folder)
        gone.append(folder.name)
    for left in _half_removed(root):
        with suppress(OSError):
            _clear(left, root / str(atomic.name_to_be(left)))
    return gone


def _clear(doomed: Path, folder: Path) -> None:
    """Remove the files of an entry; other files in it stay, under the folder's old name."""
    for path in filter(made_here, list(doomed.iterdir())):
        path.unlink(missing_ok=True)
    try:
        doomed.rmdir()
    except OSError:
        doomed.rename(folder)


def _half_removed(root: Path) -> list[Path]:
    """Entries whose removal was killed; other temporary folders are not ours, or still in use."""
    left = root.glob(f"{atomic.TEMPORARY}*") if root.is_dir() else ()
    return [path for path in left if _is_entry(path, atomic.name_to_be(path)) and atomic.abandoned(path)]


def folders(root: Path) -> list[Path]:
    """The folders that are entries by their name and content; anything else in the cache is left alone."""
    try:
        inside = sorted(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read the cache {root}: {error.strerror}; give another --cache") from error
    return [folder for folder in inside if _is_entry(folder, folder.name)]


def _is_entry(folder: Path, name: str | None) -> bool:
    """Is it an entry of this name? It holds files of one, or nothing yet.

    In a shared cache we cannot read the entries of other users, nor they ours: those are not listed.
    """
    if name is None or not ENTRY_NAME.fullmatch(name) or folder.is_symlink() or not folder.is_dir():
        return False
    try:
        inside = list(folder.iterdir())
    except (PermissionError, FileNotFoundError):  # the latter: removed since it was seen
        return False
    return not inside or any(map(made_here, inside))


def chosen(root: Path, names: Sequence[str]) -> list[Path]:
    """The entries whose names start so; all, without names."""
    found = folders(root)
    if not names:
        return found
    for name in names:
        if not name or not any(folder.name.startswith(name) for folder in found):
            raise UserError(
                f'no entry of the cache {root} is called "{name}"{nearest(name, [f.name for f in found])}'
            )
    return [folder for folder in found if folder.name.startswith(tuple(names))]


def shards_of(folder: Path) -> list[Path]:
    """The files of an entry that are shards by their names."""
    return sorted(path for path in folder.iterdir() if SHARD_NAME.fullmatch(path.name))


def _problems(folder: Path) -> list[Damage]:
    found: list[Damage] = []
    body = None
    paths = {path.name: path for path in shards_of(folder)}
    try:
        body = read_manifest(folder)
        if body is not None:
            paths |= {shard["file"]: folder / shard["file"] for shard in body["shards"]}
    except (OSError, ValueError, KeyError) as error:
        found.append(Damage(folder / MANIFEST, str(error)))
    key = None if body is None else CacheKey(body["key"], folder.name[: -SHORT - 1])
    checked = in_parallel(lambda path: shard_damage(path, folder.name[-SHORT:], key), paths.values())
    return found + [problem for problem in checked if problem]


def _problems_aside(root: Path) -> list[Damage]:
    """Damage to what else the cache holds: remembered digests, and what is sealed."""
    index = digest_index.damage(root)
    found = [] if index is None else [Damage(*index)]
    for path in sorted(path for pattern in SEALED for path in root.glob(pattern)):
        try:
            unsealed(reading.text(path))
        except (OSError, ValueError) as error:
            found.append(Damage(path, str(error)))
    return found


def _listed(folder: Path) -> CacheEntry:
    shards = shards_of(folder)
    sizes = {path.name: path.stat().st_size for path in shards}
    try:
        body = read_manifest(folder)
        whole = body is not None and all(sizes.get(s["file"]) == s["bytes"] for s in body["shards"])
        state = "partial" if body is None else "complete" if whole else "damaged"
    except (OSError, ValueError, KeyError):
        body, state = None, "damaged"
    shapes = [shape for shape in map(_shape, shards) if shape]
    dim, dtype = (shapes[0]["dim"], shapes[0]["dtype"]) if shapes else (0, "")
    return CacheEntry(
        name=folder.name,
        state=state,
        rows=body["rows"] if body else sum(shape["rows"] for shape in shapes),
        dim=dim,
        dtype=dtype,
        view=_view(folder, body),
        bytes=sum(sizes.values()),
        date=datetime.fromtimestamp(max([folder.stat().st_mtime, *(p.stat().st_mtime for p in shards)])),
        path=folder,
    )


def _view(folder: Path, body: dict[str, Any] | None) -> str:
    """The view that the manifest tells; without one, the view at the end of the folder's readable name."""
    told = body["key"].get(VIEW) if body and isinstance(body["key"], dict) else None
    name = told.get("name") if isinstance(told, dict) else None
    named = NAMED_VIEW.search(folder.name) if body is None else None
    return str(name or (named and named[1]) or CENTER.name)


def _shape(path: Path) -> dict[str, Any] | None:
    """Rows, columns and dtype from a shard's header alone; None if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        reading.regular(path)  # a pipe would be waited for
        with safe_open(path, framework="numpy") as file:
            part = file.get_slice("features")
            rows, dim = part.get_shape()
            return {"rows": rows, "dim": dim, "dtype": {"F32": "float32", "F16": "float16"}[part.get_dtype()]}
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
