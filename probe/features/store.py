"""One cache entry on disk.

    effnet-lite0-pets-train-3f2a9c51d0e7/
        00000-<digest>.safetensors    features, labels and row numbers of the first 2,048 rows
        00001-<digest>.safetensors
        manifest.json                 written last: from then on the entry is complete

A shard carries the digest of its own bytes in its name, so that data and checksum become visible in one
rename; the manifest lists those names. Nothing is ever overwritten: two runs whose bits differ write
different names, and the manifest, created exclusively, decides for all which ones count.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from probe.errors import UserError
from probe.features.cache_key import ENTRY_NAME, SHORT, Key
from probe.system import atomic
from probe.system.cache_dir import check_owner
from probe.system.checksums import file_digest
from probe.system.digest_index import file_state
from probe.system.locks import LOCK_NAME
from probe.system.sealed_json import canonical, digest, sealed, unsealed

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("probe.features")

MANIFEST = "manifest.json"
# the first half of its SHA-256 stands in a shard's name
SHARD_NAME = re.compile(r"(\d{5,})-([0-9a-f]{32})\.safetensors")


@dataclass(frozen=True)
class Damage:
    """One damaged file of an entry."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}: {self.what}"


def shard_problem(path: Path, short_hash: str, key: Key | None = None) -> Damage | None:
    """What is wrong with a shard of the entry whose key starts with `short_hash`, or None.

    With the whole `key`, also whether rows are missing that no decoder has called bad: what an older version
    left out may have been a passing failure.
    """
    from safetensors import SafetensorError, safe_open

    named = SHARD_NAME.fullmatch(path.name)
    if not named:
        return Damage(path, "not the name of a shard")
    try:
        if path.stat().st_size == 0:
            return Damage(path, "empty file")
        if file_digest(path)[:32] != named[2]:
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


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The body of the manifest; None if there is none; ValueError if it is damaged or another entry's."""
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
    """Names of shards in this very folder, with their sizes; anyone can write a checksum that fits."""
    return isinstance(shards, list) and all(
        isinstance(shard, dict)
        and SHARD_NAME.fullmatch(str(shard.get("file")))
        and isinstance(shard.get("rows"), int)
        and isinstance(shard.get("bytes"), int)
        for shard in shards
    )


def in_parallel(work: Any, items: Iterable[Any]) -> list[Any]:
    """Hashing releases the interpreter lock, so a pool of threads reads at the speed of the disk."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))


class Entry:
    """The shards of one key: which are there, which are sound, and how to add one."""

    def __init__(self, root: Path, key: Key) -> None:
        self.key = key
        # the key alone decides: an entry made under another name of the same thing is the same entry
        try:
            alike = sorted(root.glob(f"*-{key.hash[:SHORT]}"))
        except OSError as error:
            raise UserError(
                f"cannot read the cache {root}: {error.strerror}; give another --cache"
            ) from error
        same = [path for path in alike if ENTRY_NAME.fullmatch(path.name) and path.is_dir()]
        self.folder = same[0] if same else root / key.folder
        self._sound: set[tuple[str | int, ...]] = set()  # verified in this process: name and state

    # -- reading ---------------------------------------------------------------------------------------

    def present(self) -> dict[int, Path]:
        """Shards on disk by number, sound or not."""
        found: dict[int, Path] = {}
        for path in sorted(_listing(self.folder)):
            if (named := SHARD_NAME.fullmatch(path.name)) and int(named[1]) < self.key.shards:
                found.setdefault(int(named[1]), path)
        return found

    def committed(self) -> dict[int, Path] | None:
        """The manifest's shards by number; None if the entry is not complete; ValueError if damaged."""
        body = read_manifest(self.folder)
        if body is None:
            return None
        if body["key"] != self.key.ingredients or len(body["shards"]) != self.key.shards:
            raise ValueError("it belongs to another entry")
        return {number: self.folder / shard["file"] for number, shard in enumerate(body["shards"])}

    def problems(self, paths: Iterable[Path]) -> list[Damage]:
        """Verify shards; what was found sound once is not read again in this process."""
        unread = [p for p in paths if _identity(p) not in self._sound]
        found = in_parallel(lambda path: shard_problem(path, self.key.hash, self.key), unread)
        self._sound.update(_identity(p) for p, problem in zip(unread, found, strict=True) if problem is None)
        return [problem for problem in found if problem]

    def check_unchanged(self, paths: Iterable[Path]) -> None:
        """Raise if a shard is not the file that was verified: what was opened since may be another."""
        for path in paths:
            if _identity(path) not in self._sound:
                raise UserError(f"{path} was exchanged while it was opened; run again")

    def complete(self) -> tuple[dict[int, Path] | None, list[Damage]]:
        """The entry's shards if all is sound, else None and what is damaged (nothing, if just unfinished)."""
        check_owner(self.folder.parent, self.folder, self.folder / MANIFEST)
        try:
            shards = self.committed()
        except (ValueError, UnicodeDecodeError) as error:
            return None, [Damage(self.folder / MANIFEST, str(error))]
        except OSError as error:
            raise UserError(
                f"cannot read {self.folder / MANIFEST}: {error.strerror}; give another --cache"
            ) from error
        if shards is None:
            return None, []
        check_owner(*shards.values())
        problems = self.problems(shards.values())
        return (None if problems else shards), problems

    # -- writing ---------------------------------------------------------------------------------------

    def prepare(self, problems: list[Damage]) -> None:
        """Make the folder, private to the user, prove that it can be written to, remove what is damaged."""
        try:
            atomic.make_folder(self.folder)
            trial = atomic.temporary(self.folder / "trial")
            trial.touch()
            trial.unlink(missing_ok=True)
        except OSError as error:
            state = f"damaged ({problems[0]})" if problems else "not in it"
            raise UserError(
                f"the cache {self.folder.parent} cannot be written to ({error.strerror}) and these features "
                f"are {state}; give another --cache"
            ) from error
        if problems:
            self.discard(problems)

    def discard(self, problems: list[Damage]) -> None:
        """Take damaged files away, and the manifest with them: the entry is unfinished again."""
        for problem in problems:
            log.warning("rebuilding a damaged file of the feature cache: %s", problem)
        for path in [self.folder / MANIFEST, *(p.path for p in problems)]:
            with atomic.named_failures(path):
                path.unlink(missing_ok=True)

    def missing(self) -> list[int]:
        """Numbers of the shards still to compute; damaged ones are removed and count as missing."""
        present = self.present()
        if problems := self.problems(present.values()):
            self.discard(problems)
            present = self.present()
        return [number for number in range(self.key.shards) if number not in present]

    def save(self, shard: int, features: Tensor, labels: Tensor, index: Tensor) -> Path:
        """Write one shard; when this returns it survives a power cut."""
        from safetensors.torch import save

        # One metadata string, because the order of several is not fixed and bytes must be.
        data = save(
            {"features": features, "labels": labels, "index": index},
            metadata={"probe": f"{self.key.hash}/{shard}"},
        )
        path = self.folder / f"{shard:05d}-{digest(data)[:32]}.safetensors"
        self._write(path, data)
        self._sound.add(_identity(path))
        return path

    def adopt(self, other: Entry) -> None:
        """Take over the whole shards of an entry with the same features, and remove it."""
        from safetensors.torch import load

        own = self.present()
        for number, path in other.present().items():
            with suppress(FileNotFoundError):
                if number not in own and not other.problems([path]):
                    tensors = load(reading.content(path, reading.WEIGHTS))
                    self.save(number, tensors["features"], tensors["labels"], tensors["index"])
        other.drop(other.present().values())

    def commit(self) -> None:
        """Declare the entry complete, unless another run already has or a shard has gone again."""
        present = self.present()
        try:
            shards = [_described(present[number]) for number in range(self.key.shards)]
        except (KeyError, FileNotFoundError):
            return
        body = {"key": self.key.ingredients, "rows": sum(s["rows"] for s in shards), "shards": shards}
        final = self.folder / MANIFEST
        staged = atomic.temporary(final)
        try:
            self._write(staged, sealed(body))
            # A link, unlike a rename, refuses to replace a manifest that is there already.
            final.hardlink_to(staged)
            atomic.flush_folder(self.folder)
        except (FileExistsError, FileNotFoundError):
            pass
        except OSError:  # no hard links on this file system
            atomic.write_atomic(final, sealed(body))
        finally:
            staged.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what killed runs left in a complete entry: temporary files, marks, shards nobody lists."""
        with suppress(OSError, ValueError):
            listed = {path.name for path in (self.committed() or {}).values()} | {MANIFEST}
            if len(listed) > 1:
                for path in _listing(self.folder):
                    if path.name not in listed and _ours(path):
                        path.unlink(missing_ok=True)

    def drop(self, written: Iterable[Path]) -> None:
        """Take back the shards of a run that turned out worthless."""
        for path in written:
            path.unlink(missing_ok=True)
        if not self.present():
            for path in _listing(self.folder):
                if _ours(path):
                    path.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def _write(self, path: Path, data: bytes | str) -> None:
        # A file that vanishes under us means that the cache was emptied or tidied by someone else.
        for attempt in range(3):
            try:
                atomic.write_atomic(path, data)
                return
            except FileNotFoundError:
                if attempt == 2:
                    raise UserError(f"cannot write {path}: its folder keeps disappearing") from None


def _described(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        rows = file.get_slice("index").get_shape()[0]
    return {"file": path.name, "rows": rows, "bytes": path.stat().st_size}


def _listing(folder: Path) -> Iterator[Path]:
    return iter(list(folder.iterdir()) if folder.is_dir() else [])


def made_here(path: Path) -> bool:
    """Is it a file of an entry, by its name? Anything else in the folder is somebody else's."""
    return path.name == MANIFEST or _ours(path)


def _ours(path: Path) -> bool:
    """Only what this module makes is ever removed, and nothing that a living run is writing."""
    named = LOCK_NAME.fullmatch(path.name) or SHARD_NAME.fullmatch(path.name) or atomic.abandoned(path)
    return bool(named) and (path.is_symlink() or not path.is_dir())


def _identity(path: Path) -> tuple[str | int, ...]:
    try:
        return path.name, *file_state(path)
    except OSError:
        return (path.name,)
