"""Damaged, missing or impossible: noticed before any number is used, named, and rebuilt where it can be."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from probe import data, features
from probe.errors import UserError
from probe.features import inventory
from probe.features.store import Entry
from probe.system import atomic
from tests.support import feature_world as world


def take(cache, split=None, backbone=None, **options):
    options = {"shard_rows": 32, "batch_size": 8, "progress": False, **options}
    return features.extract(backbone or world.backbone(), split or world.split(), cache=cache, **options)


@pytest.fixture
def entry(tmp_path):
    """A complete entry, beside another of the same shape."""
    take(tmp_path / "cache", None, world.backbone(1))
    f = take(tmp_path / "cache")
    return tmp_path / "cache" / f"tiny-pets-train-{f.key[:12]}"


def other(entry):
    return next(folder for folder in entry.parent.iterdir() if folder != entry)


def shard(folder, number):
    return next(folder.glob(f"{number:05d}-*"))


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def exchange_all(entry):
    theirs = other(entry)
    for path in entry.iterdir():
        path.unlink()
    shutil.copytree(theirs, entry, dirs_exist_ok=True)


DAMAGE = {  # what is done, and how many of the 100 images must be read again
    "first byte of a shard": (lambda e: flip(shard(e, 1), 0), 32),
    "metadata of a shard": (lambda e: flip(shard(e, 1), 40), 32),
    "a feature": (lambda e: flip(shard(e, 1), 2000), 32),
    "last byte of a shard": (lambda e: flip(shard(e, 3), -1), 4),
    "truncated": (lambda e: os.truncate(shard(e, 0), 1000), 32),
    "emptied": (lambda e: os.truncate(shard(e, 0), 0), 32),
    "removed": (lambda e: shard(e, 2).unlink(), 32),
    "longer": (lambda e: shard(e, 2).write_bytes(shard(e, 2).read_bytes() + b"x"), 32),
    "content of another entry": (lambda e: shutil.copy(shard(other(e), 0), shard(e, 0)), 32),
    "content of another shard": (lambda e: shutil.copy(shard(e, 1), shard(e, 0)), 32),
    "another shard under its own digest": (
        lambda e: shard(e, 1).rename(e / ("00002" + shard(e, 1).name[5:])),
        32,
    ),
    "the whole of another entry": (exchange_all, 100),
    "all shards": (lambda e: [flip(shard(e, n), 400) for n in range(4)], 100),
    "a byte of the manifest": (lambda e: flip(e / "manifest.json", 300), 0),
    "half a manifest": (lambda e: os.truncate(e / "manifest.json", 200), 0),
    "no manifest": (lambda e: (e / "manifest.json").unlink(), 0),
    "an empty manifest": (lambda e: os.truncate(e / "manifest.json", 0), 0),
    "a binary manifest": (lambda e: (e / "manifest.json").write_bytes(b"\xff\xfe\x00"), 0),
    "the manifest of another entry": (
        lambda e: shutil.copy(other(e) / "manifest.json", e / "manifest.json"),
        0,
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_named_and_only_it_is_rebuilt(entry, kind, caplog):
    before = world.contents(entry)
    damage, reread = DAMAGE[kind]
    damage(entry)
    after = world.contents(entry)
    unfinished = kind == "no manifest"
    named = {str(problem.path.name) for problem in inventory.verify(entry.parent)}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert named & changed or unfinished or kind == "the whole of another entry"
    assert bool(named) != unfinished

    split = world.split()
    f = take(entry.parent, split)
    assert not f.cached
    assert sorted(split._images.seen) == sorted(set(split._images.seen))
    assert len(split._images.seen) == reread
    assert unfinished or "rebuilding a damaged file of the feature cache" in caplog.text
    assert world.contents(entry) == before
    assert inventory.verify(entry.parent) == []


def test_every_damaged_region_is_noticed(entry):
    paths = [p for p in entry.iterdir() if p.is_file()]
    for path in paths:
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            flip(path, at)
            assert [problem.path for problem in inventory.verify(entry.parent)] == [path]
            path.write_bytes(whole)


def test_what_a_killed_run_left_is_swept_by_the_next_success(entry):
    before = world.contents(entry)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (entry / f".tmp-00001-abc-{dead.pid}@{socket.gethostname()}-0a1b2c3d").write_text("half")
    (entry / ".tmp-00001-abc-123").write_text("another program's")
    (entry / ".lockfile").write_text("another program's")
    (entry / ".lock-00001").symlink_to("999999999@nowhere")
    (entry / ("00001-" + "0" * 32 + ".safetensors")).write_bytes(b"")
    (entry / "notes.txt").write_text("not ours")
    assert take(entry.parent).cached
    theirs = {".tmp-00001-abc-123": b"another program's", ".lockfile": b"another program's"}
    assert world.contents(entry) == {**before, **theirs, "notes.txt": b"not ours"}


def test_a_cache_removed_while_in_use_still_answers(entry):
    f = take(entry.parent)
    expected = f.X.tensor().clone()
    shutil.rmtree(entry.parent)
    assert torch.equal(f.X[torch.arange(100)], expected)


def test_a_cache_removed_while_it_is_filled_is_filled_again(tmp_path, monkeypatch):
    saved = Entry.save

    def save_and_lose(self, number, *tensors):
        path = saved(self, number, *tensors)
        if number == 2:
            monkeypatch.setattr(Entry, "save", saved)
            shutil.rmtree(self.folder)
        return path

    monkeypatch.setattr(Entry, "save", save_and_lose)
    f = take(tmp_path)
    assert torch.equal(f.X.tensor(), take(tmp_path / "calm").X.tensor())


class Poisoned(nn.Module):
    """Features whose largest value grows with the picture's brightness, or which are NaN."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        bright = (x.mean((1, 2, 3)) > x.mean((1, 2, 3)).median()).float()
        return (torch.ones(len(x), 32) + bright[:, None]) * self.factor


@pytest.mark.parametrize(
    ("factor", "dtype", "words"),
    [
        (float("nan"), "float32", r'the features of "\d{4}.png" \(pets/train\) are not finite'),
        (float("inf"), "float16", "not finite"),
        (40_000.0, "float16", r'a feature of "\d{4}.png" is 80000, beyond float16.*store float32'),
    ],
)
def test_numbers_that_are_no_numbers_stop_the_run_and_nothing_is_kept(tmp_path, factor, dtype, words):
    with pytest.raises(UserError, match=words):
        take(tmp_path, None, world.backbone(encoder=Poisoned(factor)), dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_image_in_the_last_shard_stops_the_run_and_nothing_is_kept(tmp_path):
    with pytest.raises(UserError, match=r"bad image 0098.png: truncated"):
        take(tmp_path, world.split(bad=frozenset({98})))
    assert list(tmp_path.iterdir()) == []


def test_a_dangling_link_in_an_image_folder_is_named_or_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "digests"))
    folder = tmp_path / "photos"
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(3):
                world.split()[i][0].save(folder / split / name / f"{i}.png")
    dangling = folder / "train/dog/1.png"
    dangling.unlink()
    dangling.symlink_to(tmp_path / "moved-away.png")
    train = data.load(folder)["train"]
    with pytest.raises(UserError, match=f"bad image {dangling}: No such file.*--skip-bad-images"):
        take(tmp_path / "cache", train)
    f = take(tmp_path / "cache", train, skip_bad_images=True)
    assert f.skipped == ["train/dog/1.png"]
    assert len(f.X) == 5


@pytest.mark.parametrize("bad", [{0}, {5, 6, 98}, set(range(32, 64)), set(range(99))], ids=len)
def test_bad_images_are_skipped_and_counted_when_asked(tmp_path, bad):
    f = take(tmp_path, world.split(bad=frozenset(bad)), skip_bad_images=True)
    good = [i for i in range(100) if i not in bad]
    assert f.skipped == [f"{i:04d}.png" for i in sorted(bad)]
    assert f.ids == [f"{i:04d}.png" for i in good]
    assert f.y.tolist() == [i % 3 for i in good]
    torch.testing.assert_close(f.X.tensor(), take(tmp_path).X[good])
    again = take(tmp_path, world.split(bad=frozenset(bad)), skip_bad_images=True)
    assert (again.cached, again.skipped) == (True, f.skipped)


def test_a_split_without_one_readable_image_is_refused(tmp_path):
    with pytest.raises(UserError, match="none of the 100 images"):
        take(tmp_path, world.split(bad=frozenset(range(100))), skip_bad_images=True)


def test_weights_that_move_during_extraction_are_noticed(tmp_path):
    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Parameter(torch.zeros(1), requires_grad=False)

        def forward(self, x):
            self.calls += 1
            return torch.ones(len(x), 32)

    with pytest.raises(UserError, match="changed during extraction"):
        take(tmp_path, None, world.backbone(encoder=Restless()))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_with_the_space_needed_and_finished_shards_stay(tmp_path, monkeypatch):
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 4:  # a file and its folder for each of two shards
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*00002-.*no space left \(it needs [0-9.]+ kB\)"):
        take(tmp_path)
    monkeypatch.undo()
    assert not any(name.startswith(atomic.TEMPORARY) for name in os.listdir(next(tmp_path.iterdir())))  # noqa: PTH208
    split = world.split()
    take(tmp_path, split)
    assert len(split._images.seen) == 36


@pytest.fixture
def shared():
    """A folder that belongs to us but whose content we may lose the right to change (also as root)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def as_reader():
    """Run without the rights of root, which no permission stops."""
    switches = []

    def become(*folders):
        for folder in folders:
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() == 0:
            os.seteuid(65534)
            switches.append(0)

    yield become
    for user in switches:
        os.seteuid(user)


def test_a_read_only_cache_that_has_the_features_serves_them(shared, as_reader):
    first = take(shared / "cache")
    as_reader(shared / "cache")
    f = take(shared / "cache")
    assert f.cached
    assert torch.equal(f.X.tensor(), first.X.tensor())
    with pytest.raises(
        UserError, match=r"cannot be written to \(Permission denied\).*not in it; give another"
    ):
        take(shared / "cache", world.split(50))


def test_a_damaged_entry_in_a_read_only_cache_is_never_used(shared, as_reader):
    key = take(shared / "cache").key
    flip(shard(shared / "cache" / f"tiny-pets-train-{key[:12]}", 1), 2000)
    as_reader(shared / "cache")
    with pytest.raises(UserError, match=r"are damaged .*00001-.*its bytes do not match its checksum"):
        take(shared / "cache")


def test_a_cache_that_cannot_be_made_or_read_is_named(tmp_path, shared, as_reader):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written to|cannot read"):
        take(tmp_path / "file" / "cache")
    take(shared / "cache")
    next((shared / "cache").iterdir()).chmod(0)
    if os.geteuid() == 0:
        as_reader()
    with pytest.raises(UserError, match=r"cannot read .*manifest.json: Permission denied"):
        take(shared / "cache")


def test_a_cache_that_another_user_has_written_is_not_trusted_silently(entry, monkeypatch):
    other_user = 12345
    if os.geteuid() == 0:
        os.chown(shard(entry, 1), other_user, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: other_user)
    with pytest.raises(
        UserError, match=r"belongs to another user .*another --cache, or set PROBE_TRUST_CACHE=1"
    ):
        take(entry.parent)
    monkeypatch.setenv("PROBE_TRUST_CACHE", "1")
    assert take(entry.parent).cached


def test_cache_folders_are_private(entry):
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (entry.parent, entry)] == [0o700, 0o700]
