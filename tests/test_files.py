"""A reader never sees half a file or half a folder."""

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


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file, not a folder"):
        files.write_atomic(tmp_path / "file" / "x", "data")


def test_a_near_miss_is_suggested_and_a_far_one_lists_what_there_is():
    assert nearest("clip-rn5", ["clip-rn50", "resnet50"]).startswith('; did you mean "clip-rn50"')
    assert "clip-rn50, resnet50" in nearest("zzz", ["clip-rn50", "resnet50"])
