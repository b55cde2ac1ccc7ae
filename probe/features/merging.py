"""Entries of another cache, taken over into this one: what machines without a common disk have extracted.

Every byte is read and compared with the checksum in its name before it is taken. Nothing that is here already
is replaced, and the other cache is left as it is. Shards of one entry that several machines hold come
together; an entry is complete once all of them are here. No torch, like the other commands on the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbones import reading
from probe.errors import UserError
from probe.features import inventory
from probe.features.cache_key import SHORT, CacheKey
from probe.features.entry_format import DIGEST, SHARD_NAME, Damage, read_manifest, shard_damage
from probe.features.store import Entry
from probe.system import atomic
from probe.system.cache_dir import cache_root
from probe.system.progress import bar
from probe.system.sealed_json import digest


@dataclass
class Merged:
    """What became of one entry of the other cache."""

    name: str  # the folder's, here
    taken: int = 0  # shards that were copied
    present: int = 0  # shards that were here already
    complete: bool = False  # is the entry complete, here and now?
    damaged: list[str] = field(default_factory=list)  # files of the other cache that were left behind


def merge(other: str | Path, cache: str | Path | None = None, names: Sequence[str] = ()) -> list[Merged]:
    """Take over the named entries of `other` (or all); may be killed and repeated."""
    source, root = reading.expanded(other), cache_root(cache)
    if not source.is_dir():
        raise UserError(f"there is no cache folder {source} to merge from")
    if root.exists() and source.samefile(root):
        raise UserError(f"{source} is the cache itself; name another one")
    folders = inventory.chosen(source, names)
    shards = sum(len(inventory.shards_of(folder)) for folder in folders)
    with bar(f"merging {source.name}", shards, "files") as advance:
        return [_merged(folder, root, advance) for folder in folders]


def _merged(folder: Path, root: Path, advance: Callable[[int], None]) -> Merged:
    try:
        body, problem = read_manifest(folder), None
    except (OSError, ValueError, KeyError) as error:  # the shards are judged by their own checksums
        body, problem = None, str(error)
    key = None if body is None else CacheKey(body["key"], folder.name[: -SHORT - 1])
    target = _place(root, folder.name)
    done = Merged(target.name, damaged=[] if problem is None else [f"{folder.name}/manifest.json: {problem}"])
    atomic.make_folder(target)
    for path in inventory.shards_of(folder):
        _take(path, target, key, done)
        advance(1)
    if key is not None:
        entry = Entry(root, key)
        entry.commit()
        done.complete = entry.complete()[0] is not None
    return done


def _take(path: Path, target: Path, key: CacheKey | None, done: Merged) -> None:
    """One shard, unless one of its number is here; the bytes that are kept are checked themselves."""
    named = SHARD_NAME.fullmatch(path.name)
    assert named is not None
    if any(target.glob(f"{named[1]}-*.safetensors")):
        done.present += 1
        return
    damage = shard_damage(path, target.name[-SHORT:], key)
    data = b"" if damage else reading.content(path, reading.WEIGHTS)
    if damage is None and digest(data)[:DIGEST] != named[2]:
        damage = Damage(path, "it changed while it was being read")
    if damage is not None:
        done.damaged.append(str(damage))
        return
    atomic.write_atomic(target / path.name, data)
    done.taken += 1


def _place(root: Path, name: str) -> Path:
    """Where an entry is or will be: the key alone decides, the readable half of a name may differ."""
    same = [folder for folder in inventory.folders(root) if folder.name[-SHORT:] == name[-SHORT:]]
    return same[0] if same else root / name
