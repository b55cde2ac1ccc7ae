"""What is in the cache can be listed, verified and removed by name."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from probe import features
from probe.errors import UserError
from probe.features import inventory
from tests.support import feature_world as world


@pytest.fixture
def cache(tmp_path):
    for name, dtype, count in (
        ("pets/train", "float32", 100),
        ("pets/test", "float16", 100),
        ("cars/test", "float32", 40),
    ):
        split = world.split(count, name=name)
        features.extract(world.backbone(), split, cache=tmp_path, dtype=dtype, shard_rows=32, progress=False)
    return tmp_path


def states(cache):
    return {entry.name[:-13]: entry.state for entry in inventory.entries(cache)}


def test_entries_are_listed_with_shape_dtype_size_and_state(cache):
    listed = {entry.name[:-13]: entry for entry in inventory.entries(cache)}
    test = listed["tiny-pets-test"]
    assert (test.rows, test.dim, test.dtype, test.state) == (100, 32, "float16", "complete")
    assert 100 * 32 * 2 < test.bytes < 20_000
    assert listed["tiny-pets-train"].dtype == "float32"
    assert [entry.date for entry in inventory.entries(cache)] == sorted(
        (e.date for e in listed.values()), reverse=True
    )


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(cache):
    shard = next(cache.glob("tiny-pets-train-*/00000-*"))
    shard.unlink()
    os.mkfifo(shard)
    words = [sys.executable, "-m", "probe.cli", "cache", "ls", "--cache", str(cache)]
    listed = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "damaged" in listed.stdout, listed.stderr


def test_closed_entries_of_other_users_are_left_alone(cache, monkeypatch):
    """Tests may run as root, to whom no folder is closed."""
    closed, listing = next(cache.glob("tiny-pets-train-*")), Path.iterdir

    def refuse(folder):
        if folder == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert set(states(cache)) == {"tiny-pets-test", "tiny-cars-test"}
    assert inventory.verify(cache) == []
    assert len(inventory.remove(cache, everything=True)) == 2
    assert [path.name for path in cache.glob("tiny-*")] == [closed.name]


def test_unfinished_and_damaged_entries_say_so(cache):
    train, test = (next(cache.glob(f"tiny-pets-{name}-*")) for name in ("train", "test"))
    (train / "manifest.json").unlink()
    next(train.glob("00003-*")).unlink()
    next(test.glob("00001-*")).write_bytes(b"short")
    assert states(cache) == {
        "tiny-pets-train": "partial",
        "tiny-pets-test": "damaged",
        "tiny-cars-test": "complete",
    }
    partial = next(entry for entry in inventory.entries(cache) if entry.state == "partial")
    assert partial.rows == 96
    (problem,) = inventory.verify(cache)
    assert str(problem).startswith("tiny-pets-test-")
    assert inventory.verify(cache, ["tiny-cars"]) == []


def test_entries_are_removed_by_the_start_of_their_name(cache):
    assert [name[:-13] for name in inventory.remove(cache, ["tiny-pets"])] == [
        "tiny-pets-test",
        "tiny-pets-train",
    ]
    assert states(cache) == {"tiny-cars-test": "complete"}
    inventory.remove(cache, everything=True)
    assert list(cache.iterdir()) == []


def test_only_entries_are_ever_removed(cache):
    (cache / "holiday-photos").mkdir()
    (cache / "readme.txt").write_text("keep")
    half_removed = next(cache.glob("tiny-cars-*"))
    dead = subprocess.Popen(["true"])
    dead.wait()
    half_removed.rename(cache / f".tmp-{half_removed.name}-{dead.pid}@{socket.gethostname()}-0a1b2c3d")
    inventory.remove(cache, everything=True)
    assert sorted(path.name for path in cache.iterdir()) == ["holiday-photos", "readme.txt"]


def test_temporary_folders_of_others_and_of_living_removals_are_left_alone(cache):
    entry, here = next(cache.glob("tiny-cars-*")).name, socket.gethostname()
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [
        ".tmp-half-removed",  # another program's
        f".tmp-{entry}",
        f".tmp-download-{dead.pid}@{here}-0a1b2c3d",  # made like ours, but of no entry
        f".tmp-{entry}-{os.getpid()}@{here}-0a1b2c3d",  # somebody is removing it just now
        f".tmp-{entry}-{dead.pid}@elsewhere-0a1b2c3d",  # on another machine
    ]
    for name in names:
        (cache / name).mkdir()
        (cache / name / "precious").write_text("keep")
    inventory.remove(cache, everything=True)
    assert {f"{path.parent.name}/{path.name}" for path in cache.rglob("precious")} == {
        f"{name}/precious" for name in names
    }


def test_another_users_folder_that_ends_like_an_entry_is_not_used_as_one(cache):
    entry = next(cache.glob("tiny-cars-*"))
    entry.rename(cache / f".tmp-{entry.name}")
    split = world.split(40, name="cars/test")
    f = features.extract(world.backbone(), split, cache=cache, shard_rows=32, progress=False)
    assert not f.cached
    assert entry.is_dir()


def test_what_others_keep_in_or_beside_an_entry_survives_its_removal(cache):
    entry = next(cache.glob("tiny-cars-*"))
    (entry / "notes.txt").write_text("keep")
    alike = cache / "wedding-photos-0123456789ab"
    alike.mkdir()
    (alike / "kiss.jpg").write_text("keep")
    inventory.remove(cache, everything=True)
    assert [path.name for path in entry.iterdir()] == ["notes.txt"]
    assert [path.name for path in alike.iterdir()] == ["kiss.jpg"]
    assert inventory.entries(cache) == []


def test_removing_needs_a_name_that_exists(cache):
    with pytest.raises(UserError, match="say which"):
        inventory.remove(cache)
    for name in ("tiny-pest", "..", "", "*"):
        with pytest.raises(UserError, match="no entry of the cache"):
            inventory.remove(cache, [name])
    assert len(states(cache)) == 3


def test_a_cache_that_does_not_exist_is_empty(tmp_path):
    assert inventory.entries(tmp_path / "none") == []
    assert inventory.verify(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot read the cache"):
        inventory.entries(tmp_path / "file")
