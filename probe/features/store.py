"""One cache entry on disk: finding it, adding shards to it, declaring it complete.

    effnet-lite0-pets-train-3f2a9c51d0e7/
        00000-<digest>.safetensors    features, labels and row numbers of the first 2,048 rows
        00001-<digest>.safetensors
        manifest.json                 written last: from then on the entry is complete

Nothing is ever overwritten: two runs whose bits differ write different names, and the manifest, created
exclusively, decides for all which ones count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from backbones import reading
from probe.errors import UserError
from probe.features.cache_key import ENTRY_NAME, SHORT, CacheKey
from probe.features.entry_format import (
    MANIFEST,
    SHARD_NAME,
    Damage,
    describe_shard,
    in_parallel,
    read_manifest,
    removable,
    shard_damage,
    shard_name,
    shard_stamp,
)
from probe.system import atomic
from probe.system.cache_dir import check_owner
from probe.system.digest_index import FileState, file_state
from probe.system.sealed_json import sealed

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("probe.features")

ATTEMPTS = 3  # at a folder that somebody else removes, or a file that somebody else replaces
T = TypeVar("T")


class Entry:
    """The shards of one key: which are there, which are sound, and how to add one."""

    def __init__(self, root: Path, key: CacheKey) -> None:
        self.key = key
        # The key alone decides: an entry made under another name of the same backbone or data is the same.
        try:
            alike = sorted(root.glob(f"*-{key.hash[:SHORT]}"))
        except OSError as error:
            raise UserError(
                f"cannot read the cache {root}: {error.strerror}; give another --cache"
            ) from error
        same = [path for path in alike if ENTRY_NAME.fullmatch(path.name) and path.is_dir()]
        self.folder = same[0] if same else root / key.folder
        self._sound: set[tuple[str, FileState | None]] = set()  # verified in this process

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

    def damaged(self, paths: Iterable[Path]) -> list[Damage]:
        """Verify shards and return the damaged ones; a sound one is not read again in this process."""
        unread = [p for p in paths if _file_version(p) not in self._sound]
        found = in_parallel(lambda path: shard_damage(path, self.key.hash, self.key), unread)
        self._sound.update(
            _file_version(p) for p, damage in zip(unread, found, strict=True) if damage is None
        )
        return [damage for damage in found if damage]

    def opened(self, path: Path, read: Callable[[Path], T]) -> T:
        """What `read` makes of a shard: of a file that was verified, and the same before and after.

        A run beside this one may write the same bytes again; then the new file is verified and read anew.
        """
        for _ in range(ATTEMPTS):
            if damage := self.damaged([path]):
                raise UserError(f"{damage[0].path} was replaced while it was being opened; run again")
            version = _file_version(path)
            found = read(path)
            if version in self._sound and _file_version(path) == version:
                return found
        raise UserError(f"{path} keeps being replaced while it is opened; check who else writes to the cache")

    def complete(self) -> tuple[dict[int, Path] | None, list[Damage]]:
        """The entry's shards if all are sound; else None, and what is damaged (nothing if unfinished)."""
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
        damaged = self.damaged(shards.values())
        return (None if damaged else shards), damaged

    # -- writing ---------------------------------------------------------------------------------------

    def prepare(self, damaged: list[Damage]) -> None:
        """Make the folder, private to the user; prove that it can be written to; remove what is damaged."""
        try:
            atomic.make_folder(self.folder)
            trial = atomic.temporary(self.folder / "trial")
            trial.touch()
            trial.unlink(missing_ok=True)
        except OSError as error:
            state = f"damaged ({damaged[0]})" if damaged else "not in it"
            raise UserError(
                f"the cache {self.folder.parent} cannot be written to ({error.strerror}) and these features "
                f"are {state}; give another --cache"
            ) from error
        if damaged:
            self.discard(damaged)

    def discard(self, damaged: list[Damage]) -> None:
        """Remove damaged files, and the manifest with them: the entry is unfinished again."""
        for damage in damaged:
            log.warning("rebuilding a damaged file of the feature cache: %s", damage)
        for path in [self.folder / MANIFEST, *(damage.path for damage in damaged)]:
            with atomic.named_failures(path):
                path.unlink(missing_ok=True)

    def missing(self) -> list[int]:
        """Numbers of the shards still to compute; damaged ones are removed and count as missing."""
        present = self.present()
        if damaged := self.damaged(present.values()):
            self.discard(damaged)
            present = self.present()
        return [number for number in range(self.key.shards) if number not in present]

    def save(self, shard: int, features: Tensor, labels: Tensor, index: Tensor) -> Path:
        """Write one shard of n rows; when this returns it survives a power cut.

        `features` are n x dim, `labels` and `index` (the rows of the split) n.
        """
        from safetensors.torch import save

        tensors = {"features": features, "labels": labels, "index": index}
        data = save(tensors, metadata=shard_stamp(self.key.hash, shard))
        path = self.folder / shard_name(shard, data)
        self._write(path, data)
        self._sound.add(_file_version(path))
        return path

    def adopt(self, other: Entry) -> None:
        """Take over the sound shards of an entry with the same features, and remove it."""
        from safetensors.torch import load

        own = self.present()
        for number, path in other.present().items():
            with suppress(FileNotFoundError):
                if number not in own and not other.damaged([path]):
                    tensors = load(reading.content(path, reading.WEIGHTS))
                    self.save(number, tensors["features"], tensors["labels"], tensors["index"])
        other.drop(other.present().values())

    def commit(self) -> None:
        """Declare the entry complete, unless another run already has or a shard has gone again."""
        present = self.present()
        try:
            shards = [describe_shard(present[number]) for number in range(self.key.shards)]
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
        """Remove what killed runs left in a complete entry: temporary files, locks, unlisted shards."""
        with suppress(OSError, ValueError):
            listed = {path.name for path in (self.committed() or {}).values()} | {MANIFEST}
            if len(listed) > 1:
                for path in _listing(self.folder):
                    if path.name not in listed and removable(path):
                        path.unlink(missing_ok=True)

    def drop(self, written: Iterable[Path]) -> None:
        """Remove the shards of a run that turned out worthless, and the entry if it is empty then."""
        for path in written:
            path.unlink(missing_ok=True)
        if not self.present():
            for path in _listing(self.folder):
                if removable(path):
                    path.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def _write(self, path: Path, data: bytes | str) -> None:
        # A file that vanishes under us means that someone else has emptied the cache.
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError):
                atomic.write_atomic(path, data)
                return
        raise UserError(f"cannot write {path}: its folder keeps disappearing")


def _listing(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _file_version(path: Path) -> tuple[str, FileState | None]:
    """A file by its name and state: another one of the same name is another version."""
    try:
        return path.name, file_state(path)
    except OSError:
        return path.name, None
