"""A split's fingerprint follows its content, and hashing is not paid twice."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import time
from contextlib import contextmanager

import pytest

import probe.data
from probe.errors import UserError
from probe.system import digest_index
from tests.support.tiny_datasets import encoded, picture, write_folder, write_parquet, write_parquet_folder


def fingerprint(path) -> str:
    return probe.data.load(path)["train"].fingerprint


def age(path, seconds: float = 60):
    """Pretend that a tree is older: what changed a moment ago is not remembered."""
    for file in path.rglob("*"):
        stat = file.stat()
        os.utime(file, (stat.st_atime - seconds, stat.st_mtime - seconds))


@pytest.fixture
def hashed(monkeypatch):
    """Counts the files that are really hashed, and lets fresh ones be remembered."""
    files = []
    real = digest_index._computed
    monkeypatch.setattr(digest_index, "RACY", 0)

    def counting(missing, paths, *rest):
        files.extend(paths[i].name for i in missing)
        return real(missing, paths, *rest)

    monkeypatch.setattr(digest_index, "_computed", counting)
    return files


def test_a_file_that_cannot_be_read_counts_as_such_and_is_hashed_when_it_is_back(folder, tmp_path, hashed):
    whole, file = fingerprint(folder), folder / "train/cat/0.png"
    kept = file.rename(tmp_path / "kept.png")
    file.symlink_to(tmp_path / "nowhere.png")  # a dangling link
    without = fingerprint(folder)
    assert without != whole
    assert fingerprint(folder) == without
    (tmp_path / "nowhere.png").hardlink_to(kept)
    assert fingerprint(folder) == whole


def test_a_file_that_exists_and_fails_to_be_read_is_tried_again(folder, monkeypatch, hashed):
    def refused(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as context:
        context.setattr("backbones.reading._opened", refused)
        without = fingerprint(folder)
    assert fingerprint(folder) != without
    assert len(hashed) == 12


def test_a_parquet_file_that_went_away_is_an_error_and_not_a_bad_image(parquet_folder):
    train = probe.data.load(parquet_folder)["train"]
    (parquet_folder / "train-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match=r"cannot read .*train-00000-of-00001.parquet: No such file"):
        train.fingerprint  # noqa: B018


def test_one_changed_pixel_changes_it(folder):
    before = fingerprint(folder)
    image = picture(0)
    image.putpixel((0, 0), (1, 2, 3))
    image.save(folder / "train/cat/0.png")
    assert fingerprint(folder) != before


def test_a_change_that_keeps_size_and_mtime_is_still_seen(folder, hashed):
    file = folder / "train/cat/0.png"
    stat = file.stat()
    before = fingerprint(folder)
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    time.sleep(0.01)
    file.write_bytes(bytes(data))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    assert fingerprint(folder) != before


def test_a_touched_copied_or_moved_data_set_keeps_it(folder, tmp_path):
    before = fingerprint(folder)
    age(folder)
    assert fingerprint(folder) == before
    assert fingerprint(folder.rename(tmp_path / "moved")) == before


def test_a_renamed_image_another_label_and_another_order_change_it(tmp_path):
    prints = {fingerprint(write_parquet_folder(tmp_path / "a", ids=None))}
    write_parquet_folder(tmp_path / "b")
    write_parquet(tmp_path / "b/train-00000-of-00001.parquet", [1, 0, 0, 1, 0, 1])
    prints.add(fingerprint(tmp_path / "b"))
    images = [encoded(picture(i)) for i in (1, 0, 2, 3, 4, 5)]
    write_parquet(tmp_path / "b/train-00000-of-00001.parquet", [0, 1, 0, 1, 0, 1], images=images)
    prints.add(fingerprint(tmp_path / "b"))
    (tmp_path / "b/train-00000-of-00001.parquet").rename(tmp_path / "b/train.parquet")
    prints.add(fingerprint(tmp_path / "b"))
    assert len(prints) == 4


def test_parquet_written_with_another_compression_keeps_it(tmp_path):
    write_parquet_folder(tmp_path)
    before = fingerprint(tmp_path)
    write_parquet_folder(tmp_path, compression="zstd", row_group_size=2)
    assert fingerprint(tmp_path) == before


def test_an_unchanged_file_is_hashed_once_and_a_changed_one_alone_again(folder, hashed):
    first = fingerprint(folder)
    assert len(hashed) == 6
    assert fingerprint(folder) == first
    assert len(hashed) == 6
    (folder / "train/dog/2.png").touch()
    assert fingerprint(folder) == first
    assert hashed[6:] == ["2.png"]


def test_a_file_changed_a_moment_ago_is_not_trusted_to_its_time_stamp(folder):
    fingerprint(folder)
    index = digest_index.cache_root() / digest_index.NAME
    assert digest_index._recall(index, [f"{(folder / 'train/cat/0.png').absolute()}\0"]) == {}


@pytest.mark.parametrize("damage", [b"this is no database at all" * 50, b""])
def test_a_damaged_index_is_rebuilt(folder, hashed, damage):
    before = fingerprint(folder)
    index = digest_index.cache_root() / digest_index.NAME
    index.write_bytes(damage)
    assert fingerprint(folder) == before
    assert fingerprint(folder) == before
    assert len(hashed) == 12  # once at first, once after the damage
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM digest").fetchone() == (6,)


def test_a_digest_of_the_wrong_length_is_computed_anew(folder, hashed):
    before = fingerprint(folder)
    with sqlite3.connect(digest_index.cache_root() / digest_index.NAME) as connection:
        connection.execute("UPDATE digest SET digest = x'00'")
    assert fingerprint(folder) == before
    assert len(hashed) == 12


def test_a_cache_that_cannot_be_written_costs_only_time(folder, tmp_path, monkeypatch):
    before = fingerprint(folder)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        monkeypatch.setenv("PROBE_CACHE", str(place))
        assert fingerprint(folder) == before


def test_hashing_that_takes_long_shows_a_bar_and_saves_on_the_way(folder, monkeypatch, hashed):
    shown = []

    @contextmanager
    def recorded(what, total, unit):
        shown.append((what, total))
        yield shown.append

    monkeypatch.setattr(digest_index, "bar", recorded)
    monkeypatch.setattr(digest_index, "PATIENCE", 0)
    monkeypatch.setattr(digest_index, "SAVE_EVERY", 0)
    fingerprint(folder)
    assert shown[0] == ("hashing the images", 6)
    assert sum(shown[1:]) == 6
    fingerprint(folder)
    assert len(hashed) == 6


def test_processes_share_one_index(tmp_path):
    folder = write_folder(tmp_path, each=40)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        prints = pool.map(fingerprint, [folder] * 6)
    assert len(set(prints)) == 1


@pytest.mark.parametrize("kind", ["folder", "parquet_folder"])
def test_a_named_cache_holds_the_digests_and_the_usual_one_stays_empty(tmp_path, hashed, kind, request):
    data = probe.data.load(request.getfixturevalue(kind), cache=tmp_path / "mine", imbalance=1)
    assert data["train"].subset([0, 1], "some").fingerprint
    assert (tmp_path / "mine" / digest_index.NAME).is_file()
    assert not (digest_index.cache_root() / digest_index.NAME).exists()


def test_the_cache_folder_is_the_users_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv("PROBE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert digest_index.cache_root() == tmp_path / ".cache/mr2-probe"
