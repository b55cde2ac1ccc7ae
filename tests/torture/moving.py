"""Data that moves while it is read: bytes swapped between hashing and decoding, failures that pass.

Whatever happens, what is stored is of the bytes that its key names, and the next run, with the data at rest,
ends as if nothing had been.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load

from backbones import reading
from probe import data, features
from probe.data.dataset import Split
from probe.data.images import Images
from probe.features import inventory
from tests.support import feature_world as pictures
from tests.support.tiny_datasets import encoded, picture, write_parquet
from tests.torture.kinds import Case, Torture, complaint

EACH = 8  # training images of each of two classes
BAD = b"\x89PNG\r\n\x1a\n, and no more of it"


def lay_out(root: Path, source: str, contents: list[bytes]) -> None:
    """The training images as a folder or in a parquet file, and two test images."""
    test = [encoded(picture(900)), encoded(picture(901))]
    if source == "parquet":
        for name, images in (("train", contents), ("test", test)):
            write_parquet(root / f"{name}.parquet", [i % 2 for i in range(len(images))], images=images)
        return
    for name, images in (("train", contents), ("test", test)):
        for i, content in enumerate(images):
            (root / name / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            (root / name / "ab"[i % 2] / f"{i:02d}.png").write_bytes(content)


def extract(root: Path, cache: Path, *, skip: bool, split: Split | None = None) -> features.FeatureSet:
    split = split or data.load(root, cache=cache)["train"]
    options = {"shard_rows": 4, "batch_size": 2, "workers": 2, "progress": False, "skip_bad_images": skip}
    return features.extract(pictures.backbone(), split, cache=cache, **options)


@contextmanager
def at_read(number: int, happens: Callable[[Images, int], None], after: Callable[[], None]) -> Iterator[list]:
    """Something happens just before the `number`-th image is read, and is over after it."""
    read = {kind: kind.stored for kind in Images.__subclasses__()}
    seen: list[int] = []

    def behave(self: Images, row: int) -> bytes:
        seen.append(row)
        if len(seen) != number:
            return read[type(self)](self, row)
        happens(self, row)
        try:
            return read[type(self)](self, row)
        finally:
            after()

    for kind in read:
        kind.stored = behave  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for kind, plain in read.items():
            kind.stored = plain  # type: ignore[method-assign]


def check_stored(cache: Path, known: dict[bytes, torch.Tensor], digests: list[bytes]) -> None:
    """Every row of every shard is the feature of the bytes that the fingerprint was made of."""
    for shard in cache.glob("*/*.safetensors"):
        tensors = load(shard.read_bytes())
        for row, feature in zip(tensors["index"].tolist(), tensors["features"], strict=True):
            assert torch.allclose(feature, known[digests[row]], atol=1e-5), f"row {row} is of other bytes"


def swapped(folder: Path) -> Case:
    images = [encoded(picture(i)) for i in range(3 * EACH)]
    lay_out(folder / "all", "folder", images)
    calm = extract(folder / "all", folder / "calm", skip=False)
    order = [int(Path(sample).stem) for sample in calm.ids]
    known = {
        hashlib.sha256(images[i]).digest(): calm.X[row : row + 1][0].clone() for row, i in enumerate(order)
    }

    def case(luck: Random) -> None:
        root = folder / f"{luck.getrandbits(32):08x}"
        source, skip = luck.choice(["folder", "parquet"]), luck.random() < 0.5
        lay_out(root / "data", source, images[: 2 * EACH])
        cache = root / "cache"
        split = data.load(root / "data", cache=cache)["train"]
        if source == "parquet" and luck.random() < 0.3:  # before it is hashed: the labels are of the other
            lay_out(root / "data", source, luck.sample(images, luck.choice([4, 2 * EACH, 20])))
            said = complaint(lambda: split.fingerprint)
            assert said is not None, "another file was hashed than the labels are of"
            shutil.rmtree(root)
            return
        split.fingerprint  # noqa: B018
        digests = [bytes(digest) for digest in split._images.digests()]
        bring_back = luck.random() < 0.5
        spare, other = root / "spare", luck.choice([images[luck.randrange(16, 24)], BAD, b"", images[0][:90]])
        shutil.copytree(root / "data", spare)

        def swap(_: Images, __: int) -> None:
            for path in sorted((root / "data").rglob("train*")):
                if path.is_dir():
                    files = sorted(path.rglob("*.png"))
                    for file in luck.sample(files, luck.randint(1, 16)):
                        staged = file.with_name("staged")
                        staged.write_bytes(other)
                        staged.replace(file) if luck.random() < 0.5 else shutil.copyfile(staged, file)
                else:
                    at = luck.randrange(path.stat().st_size - 600)
                    with path.open("r+b") as raw:
                        raw.seek(at)
                        raw.write(luck.randbytes(500))

        def restore() -> None:
            if bring_back:
                shutil.copytree(spare, root / "data", dirs_exist_ok=True)

        with at_read(luck.randint(1, 2 * EACH), swap, restore):
            said = complaint(lambda: extract(root / "data", cache, skip=skip, split=split))
        assert said is None or ("\n" not in said and str(root) in said), f"no line that names it: {said}"
        check_stored(cache, known, digests)
        assert inventory.verify(cache) == []
        shutil.copytree(spare, root / "data", dirs_exist_ok=True)
        f = extract(root / "data", cache, skip=skip)
        assert (len(f), f.skipped) == (2 * EACH, []), "a good image was skipped for ever"
        check_stored(cache, known, digests)
        shutil.rmtree(root)

    return case


class Failing:
    """One read that fails: the file is away, no descriptor or memory is left, the disk reports an error."""

    def __init__(self, kind: str) -> None:
        self.kind, self._undo = kind, lambda: None

    def __call__(self, path: Path) -> None:
        if self.kind == "away":
            aside = path.with_name("aside")
            path.rename(aside)
            self._undo = lambda: aside.replace(path)
        elif self.kind == "descriptors":
            usual = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
            self._undo = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        elif self.kind == "memory":
            raise MemoryError
        else:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def over(self) -> None:
        self._undo()
        self._undo = lambda: None


@contextmanager
def failing_hash(number: int, failing: Failing) -> Iterator[None]:
    """The `number`-th file to be hashed fails."""
    plain, seen = reading.sha256, 0

    def behave(path: Path, limit: int) -> bytes:
        nonlocal seen
        seen += 1
        if seen != number:
            return plain(path, limit)
        try:
            failing(path)
            return plain(path, limit)
        finally:
            failing.over()

    reading.sha256 = behave
    try:
        yield
    finally:
        reading.sha256 = plain


def told(attempt: Callable[[], object]) -> str | None:
    """What a command would say: `probe.cli.errors` tells a file's failure in one line, with its name.

    A process without descriptors fails wherever one is needed next, in an image or in the cache.
    """
    try:
        return complaint(attempt)
    except OSError as error:
        if error.filename is None:
            raise
        return f"{error.filename}: {error.strerror}"


def passing(folder: Path) -> Case:
    images = [encoded(picture(i)) for i in range(2 * EACH)]
    expected: dict[tuple[str, bool], features.FeatureSet] = {}
    for source in ("folder", "parquet"):
        for bad in (False, True):
            root = folder / f"{source}-{bad}"
            lay_out(root, source, [*images[:-1], BAD] if bad else images)
            expected[source, bad] = extract(root, root / "cache", skip=True)

    def case(luck: Random) -> None:
        source, bad = luck.choice(["folder", "parquet"]), luck.random() < 0.3
        skip = bad or luck.random() < 0.5
        root, cache = folder / f"{source}-{bad}", folder / f"{luck.getrandbits(32):08x}"
        kinds = ["away", "descriptors", "memory", "disk"] if source == "folder" else ["memory", "disk"]
        failing = Failing(luck.choice(kinds))
        split = data.load(root, cache=cache)["train"]
        if source == "folder" and failing.kind != "memory" and luck.random() < 0.3:
            with failing_hash(luck.randint(1, 2 * EACH), failing):
                said = told(lambda: extract(root, cache, skip=skip, split=split))
        else:
            split.fingerprint  # noqa: B018
            number = luck.randint(1, 2 * EACH)
            place = (
                (lambda images, row: failing(Path(images.where(row))))
                if source == "folder"
                else (lambda _, __: failing(root))
            )
            with at_read(number, place, failing.over):
                said = told(lambda: extract(root, cache, skip=skip, split=split))
        assert said is not None, f"{failing.kind} went unnoticed"
        assert "\n" not in said, f"more than a line: {said}"
        places = (root, cache) if failing.kind == "descriptors" else (root,)
        assert any(str(place) in said for place in places), f"no file is named: {said}"
        assert "complete" not in {entry.state for entry in inventory.entries(cache)}, "it was stored"
        f, calm = extract(root, cache, skip=skip), expected[source, bad]
        assert f.skipped == calm.skipped, f"skipped for ever: {f.skipped}"
        assert torch.equal(f.X.tensor(), calm.X.tensor()), "not as from data at rest"
        assert inventory.verify(cache) == []
        shutil.rmtree(cache)

    return case


ROWS = (
    Torture(
        "moving data: bytes swapped",
        "a feature is of the bytes that its key names",
        swapped,
        quick=6,
    ),
    Torture(
        "moving data: passing failures",
        "one line, nothing stored, and the next run ends as if nothing had been",
        passing,
        quick=8,
    ),
)
