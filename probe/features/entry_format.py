"""The files of a cache entry: how they are named, what they hold, and what is wrong with a damaged one.

A shard carries the start of its own SHA-256 in its name, so that data and checksum become visible in one
rename. The manifest lists the names of all shards. No torch here, so that `probe cache ls` is instant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from backbones import reading
from probe.features.cache_key import SHORT, CacheKey
from probe.system import atomic
from probe.system.checksums import file_digest
from probe.system.locks import LOCK_NAME
from probe.system.sealed_json import canonical, digest, unsealed
from probe.system.world import usable_cores

T = TypeVar("T")
R = TypeVar("R")

MANIFEST = "manifest.json"
DIGEST = 32  # hexadecimal digits of a shard's SHA-256 in its name
SHARD_NAME = re.compile(rf"(\d{{5,}})-([0-9a-f]{{{DIGEST}}})\.safetensors")
MOST_THREADS = 8  # that read files


@dataclass(frozen=True)
class Damage:
    """One damaged file of an entry, and what is wrong with it."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}: {self.what}"


def shard_name(shard: int, data: bytes) -> str:
    """The name of the file that holds a shard's bytes."""
    return f"{shard:05d}-{digest(data)[:DIGEST]}.safetensors"


def shard_stamp(key_hash: str, shard: int) -> dict[str, str]:
    """The metadata of a shard, which says whose it is.

    One string, because the order of several is not fixed, and the bytes must be.
    """
    return {"probe": f"{key_hash}/{shard}"}


def shard_damage(path: Path, short_hash: str, key: CacheKey | None = None) -> Damage | None:
    """What is wrong with a shard of the entry whose key starts with `short_hash`; None if it is sound.

    With the whole `key`, rows that are missing though no decoder has called them bad count too: what an older
    version left out may have been a temporary failure.
    """
    from safetensors import SafetensorError, safe_open

    named = SHARD_NAME.fullmatch(path.name)
    if not named:
        return Damage(path, "not the name of a shard")
    try:
        if path.stat().st_size == 0:
            return Damage(path, "empty file")
        if file_digest(path)[:DIGEST] != named[2]:
            return Damage(path, "its bytes do not match its checksum")
        with safe_open(path, framework="numpy") as file:
            stamp = (file.metadata() or {}).get("probe")
            rows = file.get_slice("index").get_shape()[0]
    except FileNotFoundError:
        return Damage(path, "missing")
    except (OSError, SafetensorError) as error:
        return Damage(path, f"cannot be read ({error})")
    owner, _, number = (stamp or "").partition("/")
    if not owner.startswith(short_hash) or number != str(int(named[1])):
        return Damage(path, "it belongs to another entry or another place in it")
    if key is not None and not key.lacks_rows and rows != len(key.range_of(int(number))):
        return Damage(path, "rows are missing")
    return None


def describe_shard(path: Path) -> dict[str, Any]:
    """What the manifest says about a shard."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        rows = file.get_slice("index").get_shape()[0]
    return {"file": path.name, "rows": rows, "bytes": path.stat().st_size}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The content of the manifest; None if there is none; ValueError if it is damaged or another entry's."""
    try:
        body = unsealed(reading.content(folder / MANIFEST).decode())
    except FileNotFoundError:
        return None
    if not digest(canonical(body.get("key"))).startswith(folder.name[-SHORT:]):
        raise ValueError("it belongs to another entry")
    if not isinstance(body.get("rows"), int) or not _lists_shards(body.get("shards")):
        raise ValueError("it does not list shards as a manifest does")
    return body


def _lists_shards(shards: Any) -> bool:
    """Are these names of shards in this very folder, with sizes? Anyone can write a checksum that matches."""
    return isinstance(shards, list) and all(
        isinstance(shard, dict)
        and SHARD_NAME.fullmatch(str(shard.get("file")))
        and isinstance(shard.get("rows"), int)
        and isinstance(shard.get("bytes"), int)
        for shard in shards
    )


def made_here(path: Path) -> bool:
    """Is it a file of an entry, by its name? Anything else in the folder is somebody else's."""
    return path.name == MANIFEST or removable(path)


def removable(path: Path) -> bool:
    """Did this room make the file, and is no living run writing it? Nothing else is ever removed."""
    named = LOCK_NAME.fullmatch(path.name) or SHARD_NAME.fullmatch(path.name) or atomic.abandoned(path)
    return bool(named) and (path.is_symlink() or not path.is_dir())


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` on every item. Hashing releases the interpreter lock: threads read at the speed of the disk."""
    with ThreadPoolExecutor(min(MOST_THREADS, usable_cores())) as pool:
        return list(pool.map(work, items))
