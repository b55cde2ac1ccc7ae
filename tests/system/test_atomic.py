"""A reader never sees half a file or half a folder."""

import errno
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from probe.errors import UserError, nearest
from probe.system import atomic


def test_a_failed_folder_leaves_the_old_one_and_no_litter(tmp_path):
    with atomic.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("old")
    with suppress(RuntimeError), atomic.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("new")
        raise RuntimeError
    assert (tmp_path / "run" / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_finished_folder_replaces_the_old_one_whole(tmp_path):
    for name in ("a", "b"):
        with atomic.staged_folder(tmp_path / "run") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["b"]


def test_a_killed_writers_litter_is_swept_by_the_next_one(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here = socket.gethostname()
    litter = [tmp_path / f"{atomic.TEMPORARY}{name}-{dead.pid}@{here}-abcd" for name in ("run", "page")]
    others = [f"run-{os.getpid()}@{here}-abcd", f"run-{dead.pid}@elsewhere-abcd", f"runs-{dead.pid}@{here}-a"]
    alive = [tmp_path / f"{atomic.TEMPORARY}{name}" for name in others]
    for path in (litter[0], *alive):
        path.mkdir()
    litter[1].touch()
    with atomic.staged_folder(tmp_path / "run"):
        pass
    atomic.write_atomic(tmp_path / "page", "whole")
    assert not any(path.exists() for path in litter)
    assert all(path.exists() for path in alive)


def test_what_is_made_is_private_to_the_user(tmp_path):
    atomic.write_atomic(tmp_path / "cache" / "entry" / "file", "")
    with atomic.staged_folder(tmp_path / "runs" / "run"):
        pass
    for folder in ("cache", "cache/entry", "runs", "runs/run"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


def test_a_folder_is_replaced_in_one_step(tmp_path, monkeypatch):
    """There is no moment, however short, without the old folder or the new one."""
    with atomic.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("old")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("two steps"))
    with atomic.staged_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("new")
    assert (tmp_path / "run" / "a").read_text() == "new"


def test_a_folder_is_replaced_where_two_cannot_be_swapped(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    for name in ("a", "b"):
        with atomic.staged_folder(tmp_path / "run") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["b"]


@pytest.mark.parametrize("number", atomic.WAYS_OUT)
def test_every_failure_of_a_disk_is_one_line_that_names_the_file(tmp_path, monkeypatch, number):
    def failing(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError, match=f"cannot write {tmp_path / 'a'}: [^\n]*$"):
        atomic.write_atomic(tmp_path / "a", b"x" * 3140)
    assert list(tmp_path.iterdir()) == []
    if number in (errno.ENOSPC, errno.EIO):
        with pytest.raises(UserError, match=r"it needs 3.1 kB"):
            atomic.write_atomic(tmp_path / "a", b"x" * 3140)


def test_two_writers_of_one_folder_both_succeed_and_one_of_them_stays(tmp_path):
    def write(name):
        for _ in range(50):
            with atomic.staged_folder(tmp_path / "run") as folder:
                (folder / name).write_text(name)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, name) for name in "ab"]:
            done.result()
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file, not a folder"):
        atomic.write_atomic(tmp_path / "file" / "x", "data")


def test_a_near_miss_is_suggested_and_a_far_one_lists_what_there_is():
    assert nearest("clip-rn5", ["clip-rn50", "resnet50"]).startswith('; did you mean "clip-rn50"')
    assert "clip-rn50, resnet50" in nearest("zzz", ["clip-rn50", "resnet50"])
