"""Features are of the very bytes that their key names, and only the decoder calls an image bad."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from backbones import reading
from probe import data, features
from probe.data import decode
from probe.errors import UserError
from probe.features import inventory
from probe.features.cache_key import key_of
from probe.features.store import Entry
from probe.system import digest_index
from probe.train.inputs.loaders import Views
from tests.support import feature_world as world
from tests.support.tiny_datasets import encoded, picture, write_parquet


def take(cache, split, backbone=None, **options):
    options = {"shard_rows": 4, "batch_size": 2, "progress": False, **options}
    return features.extract(backbone or world.backbone(), split, cache=cache, **options)


@pytest.fixture(autouse=True)
def _own_index(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "index"))


@pytest.fixture
def photos(tmp_path):
    for split, number in (("train", 8), ("test", 1)):
        for c, name in enumerate(("cat", "dog")):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for i in range(number):
                picture(100 * c + i).save(tmp_path / "photos" / split / name / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def rows(tmp_path):
    write_parquet(tmp_path / "rows" / "train.parquet", [0, 1] * 8)
    write_parquet(tmp_path / "rows" / "test.parquet", [0, 1])
    return tmp_path / "rows"


def swap_file(photos: Path) -> None:
    (photos / "train/dog/7.png").write_bytes(encoded(picture(999)))


def swap_bytes(rows: Path) -> None:
    """One image inside a parquet file becomes another of the same length."""
    file = rows / "train.parquet"
    old, content = encoded(picture(15)), bytearray(file.read_bytes())
    at = content.index(old)
    pixels = np.asarray(picture(15)).copy()
    pixels[0, 0] ^= 1
    new = encoded(Image.fromarray(pixels))
    assert len(new) == len(old)
    with file.open("r+b") as raw:
        raw.seek(at)
        raw.write(new)


class Swapping(nn.Module):
    """An encoder at whose first batch something happens to the data."""

    def __init__(self, happens):
        super().__init__()
        self.happens = [happens]
        self.body = world.backbone().encoder

    def forward(self, x):
        while self.happens:
            self.happens.pop()()
        return self.body(x)


@pytest.mark.parametrize(("source", "swap"), [("photos", swap_file), ("rows", swap_bytes)])
def test_an_image_swapped_during_extraction_is_named_and_nothing_is_kept(tmp_path, request, source, swap):
    folder = request.getfixturevalue(source)
    restless = world.backbone(encoder=Swapping(lambda: swap(folder)))
    train = data.load(folder)["train"]
    before = train.fingerprint
    with pytest.raises(UserError, match=r"image .* changed while it was in use: .* run again"):
        take(tmp_path / "cache", train, restless, workers=0, batch_size=1)
    assert inventory.entries(tmp_path / "cache") == []
    again = data.load(folder)["train"]
    assert again.fingerprint != before
    f = take(tmp_path / "cache", again)
    assert torch.equal(f.X.tensor(), take(tmp_path / "calm", data.load(folder)["train"]).X.tensor())


def test_bad_images_may_be_skipped_but_changed_ones_never_are(tmp_path, photos):
    train = data.load(photos)["train"]
    train.fingerprint  # noqa: B018
    (photos / "train/dog/7.png").write_bytes(b"no image at all")
    with pytest.raises(UserError, match=r"dog/7.png changed"):
        take(tmp_path / "cache", train, skip_bad_images=True)
    assert inventory.entries(tmp_path / "cache") == []


def test_a_digest_that_was_remembered_wrongly_is_noticed_and_forgotten(tmp_path, photos, monkeypatch):
    """On a file system whose clock stands still, a changed file of the same size looks unchanged."""
    monkeypatch.setattr(digest_index, "RACY", -(10**18))
    monkeypatch.setattr(
        digest_index, "file_state", lambda path: digest_index.FileState(path.stat().st_size, 1, 1, 1)
    )
    file = photos / "train/cat/0.png"
    size = max(len(encoded(picture(0))), len(encoded(picture(50))))
    file.write_bytes(encoded(picture(0)).ljust(size, b"\0"))
    first = data.load(photos)["train"].fingerprint
    file.write_bytes(encoded(picture(50)).ljust(size, b"\0"))
    train = data.load(photos)["train"]
    assert train.fingerprint == first
    with pytest.raises(UserError, match=r"cat/0.png changed"):
        take(tmp_path / "cache", train)
    assert len(take(tmp_path / "cache", data.load(photos)["train"])) == 16


FAILURES = {
    "moved for a moment": (OSError(errno.ENOENT, "No such file"), "No such file.*put it back"),
    "too many open files": (OSError(errno.EMFILE, "Too many"), r"Too many open files.*ulimit -n"),
    "a failing disk": (OSError(errno.EIO, "I/O error"), "Input/output error.*check the disk"),
    "no memory": (MemoryError(), "Cannot allocate memory.*fewer workers"),
}


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_that_passes_stops_the_run_and_is_not_stored(tmp_path, photos, monkeypatch, kind, skip):
    error, words = FAILURES[kind]
    calm = take(tmp_path / "calm", data.load(photos)["train"], skip_bad_images=skip)
    train, real = data.load(photos)["train"], reading.content
    train.fingerprint  # noqa: B018

    def failing(path, *limit):
        if path.name == "5.png" and path.parent.name == "dog":
            raise error
        return real(path, *limit)

    with monkeypatch.context() as context:
        context.setattr(reading, "content", failing)
        with pytest.raises(UserError, match=rf"cannot read image .*dog/5.png now: {words}.*, and run again"):
            take(tmp_path / "cache", train, skip_bad_images=skip)
    assert "complete" not in {entry.state for entry in inventory.entries(tmp_path / "cache")}
    f = take(tmp_path / "cache", data.load(photos)["train"], skip_bad_images=skip)
    assert (f.key, f.skipped) == (calm.key, [])
    assert torch.equal(f.X.tensor(), calm.X.tensor())


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")])
def test_a_lack_of_memory_while_decoding_is_no_verdict_on_the_image(tmp_path, photos, monkeypatch, error):
    def failing(image):
        raise error

    with monkeypatch.context() as context:
        context.setattr(decode, "to_rgb", failing)
        with pytest.raises(UserError, match=r"cannot decode image .*memory.* run again"):
            take(tmp_path / "cache", data.load(photos)["train"], skip_bad_images=True)
    assert take(tmp_path / "cache", data.load(photos)["train"], skip_bad_images=True).skipped == []


def test_too_many_open_files_while_hashing_do_not_make_images_unreadable(photos, monkeypatch):
    def failing(path, limit):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(reading, "sha256", failing)
    with pytest.raises(UserError, match=r"cannot read .*cat/0.png: Too many open files"):
        data.load(photos)["train"].fingerprint  # noqa: B018


def test_fine_tuning_refuses_an_image_that_changed_since_it_was_hashed(photos):
    train = data.load(photos)["train"]
    train.fingerprint  # noqa: B018
    swap_file(photos)
    views = Views(train, world.PREPROCESSING.pixels, (world.PREPROCESSING.pixels,), seed=0)
    assert isinstance(views[0, 0][1], list)
    assert "dog/7.png changed" in views[0, 15][1]


# -- keys --------------------------------------------------------------------------------------------------


def test_keys_are_what_they_always_were():
    options = {"fingerprint": "f", "dtype": "float32"}
    keys = [
        key_of(world.backbone(), world.split(), **options, skip_bad_images=skip).hash
        for skip in (False, True)
    ]
    assert keys == [
        "5a25ea9f5a9118338f418cb9150982b1319ba1cc56907b67ac32005143e1ae78",
        "06758f9588609554685ad6922a130e0ff860b9bc54952926de12eea6cbc9f1ee",
    ]
    assert data.load("digits")["test"].fingerprint == (
        "a172313a06b0a444a1245c92dc0b00d007adde5d0b030340f3c8bdfbcba176d3"
    )


def test_another_decoder_judges_anew_but_only_where_images_were_skipped(tmp_path, monkeypatch):
    def both():
        bad = world.split(bad=frozenset({5}))
        return [take(tmp_path, split, skip_bad_images=True) for split in (bad, world.split(60))]

    bad, good = both()
    assert [f.cached for f in both()] == [True, True]
    assert good.key == take(tmp_path / "same", world.split(60), skip_bad_images=True).key
    monkeypatch.setattr("PIL.__version__", "99.0")
    bad_again, good_again = both()
    assert (bad_again.cached, good_again.cached) == (False, True)
    assert (bad_again.key != bad.key, good_again.key) == (True, good.key)


def test_a_bad_image_found_late_costs_only_its_own_shard(tmp_path):
    split = world.split(bad=frozenset({97}))
    f = take(tmp_path, split, skip_bad_images=True, workers=0)
    assert f.skipped == ["0097.png"]
    assert len(split._images.seen) <= 100 + 4
    assert [entry.state for entry in inventory.entries(tmp_path)] == ["complete"]
    assert inventory.verify(tmp_path) == []


def test_rows_that_an_older_version_left_out_are_not_trusted(tmp_path):
    split, backbone = world.split(8), world.backbone()
    key = key_of(
        backbone, split, fingerprint=backbone.digest(), dtype="float32", skip_bad_images=True, shard_rows=4
    )
    calm = take(tmp_path / "calm", split, skip_bad_images=True)
    old = Entry(tmp_path / "cache", key)
    for shard, kept in ((0, [0, 1, 2, 3]), (1, [4, 6, 7])):  # row 5 was away for a moment
        index = torch.tensor(kept)
        old.save(shard, calm.X[index], torch.from_numpy(calm.y)[index], index)
    old.commit()
    (damaged,) = inventory.verify(tmp_path / "cache")
    assert "rows are missing" in str(damaged)
    again = world.split(8)
    f = take(tmp_path / "cache", again, skip_bad_images=True)
    assert (f.key, f.skipped) == (calm.key, [])
    assert sorted(again._images.seen) == [4, 5, 6, 7]
    assert torch.equal(f.X.tensor(), calm.X.tensor())


def test_a_shard_exchanged_after_it_was_verified_is_not_opened(tmp_path, monkeypatch):
    take(tmp_path, world.split(8))
    complete = Entry.complete

    def then_swapped(self):
        shards, problems = complete(self)
        other = shards[0].read_bytes()
        (tmp_path / "other").write_bytes(other[:-1] + bytes([other[-1] ^ 1]))
        os.replace(tmp_path / "other", shards[0])  # noqa: PTH105
        return shards, problems

    monkeypatch.setattr(Entry, "complete", then_swapped)
    with pytest.raises(UserError, match=r"00000-.* was replaced while it was being opened; run again"):
        take(tmp_path, world.split(8))


def test_the_side_of_the_digits_belongs_to_their_bytes():
    images = data.load("digits")["train"]._images
    images.digests()
    assert images.rgb(3).size == (64, 64)
    images._pixels = images._pixels.copy()
    images._pixels[3, 0, 0] ^= 1
    with pytest.raises(UserError, match="number 3 of the embedded digits changed"):
        images.rgb(3)
    assert replace(world.PREPROCESSING, size=8).pixels(images.rgb(4)).shape == (3, 8, 8)
