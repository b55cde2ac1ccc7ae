"""What is in the cache can be listed, verified and removed by name."""

from __future__ import annotations

import feature_world as world
import pytest

from probe import features
from probe.errors import UserError
from probe.features import inventory


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


def test_only_entries_are_ever_removed(cache, tmp_path):
    (cache / "holiday-photos").mkdir()
    (cache / "readme.txt").write_text("keep")
    (cache / ".tmp-half-removed").mkdir()
    inventory.remove(cache, everything=True)
    assert sorted(path.name for path in cache.iterdir()) == ["holiday-photos", "readme.txt"]


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
