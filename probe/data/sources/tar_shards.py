"""WebDataset shards: tar files in which `0001.jpg` and `0001.cls` (or `0001.json`) are one sample.

Nothing is extracted: the headers say where every file stands, and an image is one read at its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from backbones import reading
from probe.data.dataset import Split
from probe.data.images import Images
from probe.data.request import Request
from probe.data.sources.image_folder import EXTENSIONS
from probe.data.sources.parquet_reader import LRUCache, most_open
from probe.data.sources.table_columns import LABEL_NAMES, TablePart, plain_labels
from probe.data.sources.table_splits import table_splits
from probe.errors import UserError
from probe.system import digest_index
from probe.system.digest_index import FileState, file_state

SMALL = 1 << 20  # bytes of a label or of a sample's JSON
TEXTS = ("cls", "txt")  # that hold a label, if JSON does not


@dataclass(frozen=True)
class Shard:
    """One tar file: where its images stand."""

    path: Path
    state: FileState
    places: np.ndarray  # N x (start, length)

    def check_same(self) -> None:
        """Raise if another file stands there now."""
        with _plain_errors(self.path):
            now = file_state(self.path)
        if not now.same_file(self.state):
            raise UserError(f"{self.path} has changed while it was being read; start again")

    def contents(self) -> Iterator[bytes]:
        """The stored bytes of its images, each read at its place."""
        self.check_same()
        with self.path.open("rb", buffering=0) as file:
            for start, length in self.places.tolist():
                yield os.pread(file.fileno(), length, start)


@dataclass(frozen=True)
class ShardPart(TablePart):
    """The labels of one shard, and where its images are."""

    shard: Shard
    beside: list[dict[str, Any]]  # each sample's JSON


@dataclass
class _Sample:
    images: dict[str, tuple[int, int]] = field(default_factory=dict)  # by extension: start, length
    label: str | None = None
    beside: dict[str, Any] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # extensions of its files


class TarImages(Images):
    """The images of some shards, as one long list."""

    def __init__(self, parts: Sequence[ShardPart], ids: list[str], cache: str | Path | None) -> None:
        self._shards = [part.shard for part in parts]
        self._beside = [beside for part in parts for beside in part.beside]
        self._ids = ids
        self._cache = cache  # where digests are remembered
        self._starts = list(accumulate((len(s.places) for s in self._shards), initial=0))
        self._files: tuple[int, LRUCache[BinaryIO]] | None = None  # open ones, of one process

    def stored(self, row: int) -> bytes:
        which = bisect_right(self._starts, row) - 1
        start, length = self._shards[which].places[row - self._starts[which]].tolist()
        return os.pread(self._opened()[which].fileno(), length, start)

    def where(self, row: int) -> str:
        return f'"{self._ids[row]}" in {self._shards[bisect_right(self._starts, row) - 1].path}'

    def hashed(self) -> np.ndarray:
        shards = {shard.path: shard for shard in self._shards}
        found = digest_index.digests(
            list(shards),
            partial(_digests_of, shards=shards),
            lengths=[32 * len(shard.places) for shard in shards.values()],
            key="tar",
            cache=self._cache,
        )
        for shard in self._shards:
            shard.check_same()
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 32)

    def forget(self, row: int) -> None:
        shard = self._shards[bisect_right(self._starts, row) - 1]
        digest_index.forget(shard.path, key="tar", cache=self._cache)

    def columns(self) -> list[str]:
        return sorted({name for beside in self._beside for name in beside})

    def column(self, name: str) -> list[Any]:
        return [beside.get(name) for beside in self._beside]

    def _opened(self) -> LRUCache[BinaryIO]:
        if self._files is None or self._files[0] != os.getpid():
            self._files = os.getpid(), LRUCache(most_open(), self._open)
        return self._files[1]

    def _open(self, which: int) -> BinaryIO:
        self._shards[which].check_same()
        return self._shards[which].path.open("rb", buffering=0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}


def _digests_of(path: Path, *, shards: dict[Path, Shard]) -> bytes:
    reading.regular(path)
    with path.open("rb", buffering=0) as file:
        places = shards[path].places.tolist()
        return b"".join(hashlib.sha256(os.pread(file.fileno(), n, at)).digest() for at, n in places)


def read_files(root: Path, found: Mapping[str, Sequence[str]], ask: Request) -> dict[str, Split]:
    """The splits in shards that are known by split."""
    parts = {name: [_part(root / file, ask) for file in files] for name, files in found.items()}
    return table_splits(parts, ask, root, lambda mine, ids: TarImages(mine, ids, ask.cache))


def _part(path: Path, ask: Request) -> ShardPart:
    with _plain_errors(path):
        state = file_state(path)
        reading.regular(path)
        samples = _samples(path, state.size)
    places, labels, ids, beside = [], [], [], []
    for key, sample in samples.items():
        if not sample.images:
            raise UserError(f'{path}: "{key}" has no image; a sample is key.jpg with key.cls or key.json')
        places.append(_chosen(sample, key, ask, path))
        labels.append(_label(sample, ask))
        ids.append(f"{path.name}:{key}")
        beside.append(sample.beside)
    shard = Shard(path, state, np.array(places, dtype=np.int64).reshape(-1, 2))
    shard.check_same()
    return ShardPart(path, _plain(labels, path), ids, (), shard, beside)


def image_files(path: Path) -> tuple[Shard, list[str]]:
    """All images of a tar file, whether they have labels or not, and their names in it."""
    with _plain_errors(path):
        state = file_state(path)
        reading.regular(path)
        samples = _samples(path, state.size)
    found = {f"{key}.{end}": place for key, s in samples.items() for end, place in s.images.items()}
    shard = Shard(path, state, np.array(list(found.values()), dtype=np.int64).reshape(-1, 2))
    shard.check_same()
    return shard, list(found)


def _samples(path: Path, size: int) -> dict[str, _Sample]:
    """What belongs together, in the order of the first file of each sample."""
    samples: dict[str, _Sample] = {}
    with tarfile.TarFile(path) as tar:  # plain ones only: a compressed one has no places
        for member in tar:
            name = PurePosixPath(member.name)
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or name.name.startswith("."):
                continue
            if member.offset_data + member.size > size:
                raise tarfile.ReadError("it is cut off")
            stem, _, extension = name.name.partition(".")
            sample = samples.setdefault(str(name.with_name(stem)), _Sample())
            extension = extension.lower()
            if extension in sample.seen:
                raise tarfile.ReadError(f"{member.name} stands in it twice; give each sample its own name")
            sample.seen.add(extension)
            if f".{extension}".endswith(EXTENSIONS):
                sample.images[extension] = member.offset_data, member.size
            elif extension in (*TEXTS, "json"):
                _take_text(sample, extension, _content(tar, member), member.name)
    return samples


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > SMALL:
        raise tarfile.ReadError(f"{member.name} has {member.size:,} bytes; at most {SMALL:,} are read")
    file = tar.extractfile(member)  # a view of the archive: nothing is written
    return "" if file is None else file.read().decode("utf-8")


def _take_text(sample: _Sample, extension: str, text: str, name: str) -> None:
    if extension != "json":
        if sample.label is None or extension == TEXTS[0]:
            sample.label = text.strip()
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise tarfile.ReadError(f"{name} is not JSON: {error}") from error
    sample.beside = found if isinstance(found, dict) else {}


def _chosen(sample: _Sample, key: str, ask: Request, path: Path) -> tuple[int, int]:
    """Where the sample's image stands; data.image chooses by its ending where there are several."""
    endings = [end for end in sample.images if ask.image_named in (None, end)]
    if len(endings) != 1:
        raise UserError(
            f'{path}: "{key}" has {len(endings) or "no such"} images (endings {", ".join(sample.images)}); '
            "data.image=ENDING chooses one"
        )
    return sample.images[endings[0]]


def _label(sample: _Sample, ask: Request) -> Any:
    if ask.label_named is not None and ask.label_named not in TEXTS:
        return sample.beside.get(ask.label_named)
    if sample.label is not None:
        return sample.label
    return next((sample.beside[n] for n in (*ask.label, *LABEL_NAMES, "cls") if n in sample.beside), None)


def _plain(labels: list[Any], path: Path) -> pa.Array:
    """Numbers where all are, else texts."""
    if all(label is None or str(label).lstrip("-").isdigit() for label in labels):
        labels = [None if label is None else int(label) for label in labels]
    elif not all(label is None or isinstance(label, str) for label in labels):
        if any(isinstance(label, list) for label in labels):
            labels = [label if isinstance(label, list) else [label] for label in labels]
        else:
            labels = [None if label is None else str(label) for label in labels]
    with _plain_errors(path):
        return plain_labels(pa.chunked_array([pa.array(labels)]), path)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, OSError, ValueError, OverflowError, EOFError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        packed = isinstance(error, tarfile.ReadError) and "header" in why
        hint = "; if it is compressed, unpack it: images are read at their places" if packed else ""
        raise UserError(f"cannot read {path} as a tar file: {why.splitlines()[0]}{hint}") from error
