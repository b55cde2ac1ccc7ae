"""Files that people name are read only if they are files, and of a sane size."""

import os
from pathlib import Path

import pytest

from backbones import reading
from backbones.errors import UserError
from backbones.state_dict import file_kind


@pytest.mark.timeout(20)
def test_pipes_devices_folders_and_impossible_names_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "pipe", "pipe or a device"),
        (Path("/dev/zero"), "pipe or a device"),
        (tmp_path, "folder"),
        (tmp_path / "a\0b", "no file can have this name"),
    ):
        with pytest.raises(OSError, match=words):
            reading.content(path)
        with pytest.raises(UserError, match=words):
            file_kind(path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(reading.TEXT + 1)  # takes no space
    with pytest.raises(OSError, match="at most 67 are read"):
        reading.content(path)
    path.write_bytes(b"small")
    assert reading.content(path) == b"small"
