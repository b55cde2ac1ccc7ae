"""Caches of several machines become one: what is sound is taken, what is damaged is left and named."""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner

from probe import features
from probe.cli import main
from probe.errors import UserError
from probe.features import inventory
from probe.features.merging import merge
from tests.support import feature_world as world

OPTIONS = {"shard_rows": 32, "batch_size": 16, "progress": False}


def take(cache, **options):
    return features.extract(world.backbone(), world.split(), cache=cache, **OPTIONS, **options)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    root = tmp_path_factory.mktemp("other")
    take(root)
    return root


def test_a_complete_entry_is_taken_whole_and_found(tmp_path, other):
    (done,) = merge(other, tmp_path / "here")
    assert (done.taken, done.present, done.complete, done.damaged) == (4, 0, True, [])
    assert world.contents(tmp_path / "here") == world.contents(other)
    assert take(tmp_path / "here").cached
    (again,) = merge(other, tmp_path / "here")
    assert (again.taken, again.present, again.complete) == (0, 4, True)


def test_halves_of_two_machines_come_together_without_any_image_being_encoded_again(tmp_path, other):
    (entry,) = other.iterdir()
    for number, machine in enumerate(("one", "two")):
        half = tmp_path / machine / entry.name
        half.mkdir(parents=True)
        for shard in sorted(entry.glob("*.safetensors"))[number::2]:
            shutil.copy(shard, half)
    here = tmp_path / "here"
    for machine in ("one", "two"):
        (done,) = merge(tmp_path / machine, here)
        assert (done.taken, done.complete) == (2, False)
    seen = []
    assert len(features.extract(world.backbone(), world.split(seen=seen), cache=here, **OPTIONS)) == 100
    assert seen == []
    assert world.contents(here) == world.contents(other)


def test_a_damaged_shard_is_left_behind_and_named_and_the_rest_is_taken(tmp_path, other):
    damaged = tmp_path / "damaged"
    shutil.copytree(other, damaged)
    shard = sorted(damaged.glob("*/00001-*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    (done,) = merge(damaged, tmp_path / "here")
    assert (done.taken, done.complete) == (3, False)
    assert len(done.damaged) == 1
    assert shard.name in done.damaged[0]
    assert inventory.verify(tmp_path / "here") == []
    (healed,) = merge(other, tmp_path / "here")
    assert (healed.taken, healed.present, healed.complete) == (1, 3, True)


def test_a_folder_without_entries_is_told_in_one_line(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = CliRunner().invoke(main, ["cache", "merge", str(empty), "--cache", str(tmp_path / "here")])
    assert (done.exit_code, done.output.strip()) == (0, f"{empty} holds no entry: nothing was merged")


def test_only_the_named_entries_of_another_existing_cache_are_taken(tmp_path, other):
    with pytest.raises(UserError, match=r"no cache folder"):
        merge(tmp_path / "nowhere", tmp_path / "here")
    with pytest.raises(UserError, match=r"is the cache itself"):
        merge(other, other)
    with pytest.raises(UserError, match=r'no entry .* is called "bird"'):
        merge(other, tmp_path / "here", ["bird"])
    assert len(merge(other, tmp_path / "here", ["tiny"])) == 1
