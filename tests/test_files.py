"""A reader never sees half a file or half a folder."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from probe import files
from probe.errors import UserError, nearest


def test_a_failed_folder_leaves_the_old_one_and_no_litter(tmp_path):
    with files.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("old")
    with suppress(RuntimeError), files.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("new")
        raise RuntimeError
    assert (tmp_path / "run" / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_finished_folder_replaces_the_old_one_whole(tmp_path):
    for name in ("a", "b"):
        with files.staged_folder(tmp_path / "run") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["b"]


def test_a_killed_writers_litter_is_swept_by_the_next_one(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    litter = tmp_path / f"{files.TEMPORARY}run-{dead.pid}-abcd"
    mine = tmp_path / f"{files.TEMPORARY}run-{os.getpid()}-abcd"
    litter.mkdir()
    mine.mkdir()
    with files.staged_folder(tmp_path / "run"):
        pass
    assert not litter.exists()
    assert mine.exists()


def test_two_writers_of_one_folder_both_succeed_and_one_of_them_stays(tmp_path):
    def write(name):
        for _ in range(50):
            with files.staged_folder(tmp_path / "run") as folder:
                (folder / name).write_text(name)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, name) for name in "ab"]:
            done.result()
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file, not a folder"):
        files.write_atomic(tmp_path / "file" / "x", "data")


def test_a_near_miss_is_suggested_and_a_far_one_lists_what_there_is():
    assert nearest("clip-rn5", ["clip-rn50", "resnet50"]).startswith('; did you mean "clip-rn50"')
    assert "clip-rn50, resnet50" in nearest("zzz", ["clip-rn50", "resnet50"])
