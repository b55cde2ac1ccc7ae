"""What the `datasets` library would do to people's data, and ours does not."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import probe.data
from probe.data.few_shot import few_shot
from probe.data.summary import summarise
from probe.errors import UserError
from probe.report.text import data as text
from tests.support.layouts import CLASSES, flat
from tests.support.tiny_datasets import encoded, picture, write_folder, write_parquet_folder

QUIET = """
import sys, probe.data
for path in sys.argv[1:]:
    probe.data.load(path)["train"].fingerprint
assert "datasets" not in sys.modules, "it costs 0.6 to 0.9 s"
"""


def test_datasets_is_imported_for_what_needs_it_alone(tmp_path):
    paths = [
        flat(tmp_path / "flat"),
        write_folder(tmp_path / "splits"),
        write_parquet_folder(tmp_path / "rows"),
    ]
    command = [sys.executable, "-c", QUIET, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_orientation_is_ignored_from_every_source(tmp_path):
    """`decode=True` would turn the image."""
    import datasets

    image, buffer = picture(0, (40, 20)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(buffer, "JPEG", exif=exif)
    images = [buffer.getvalue(), *(encoded(picture(i)) for i in range(3))]
    columns = {"image": [{"bytes": one, "path": None} for one in images], "label": [0, 0, 1, 1]}
    rows = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    data = probe.data.from_datasets(rows)
    assert (40, 20) in {image.size for split in data.by_name.values() for image, _ in split}


def test_nested_folders_keep_their_class_and_archives_stay_closed(tmp_path):
    root = flat(tmp_path)
    (root / "cat/deep/deeper").mkdir(parents=True)
    (root / "cat/0.png").rename(root / "cat/deep/deeper/0.png")
    with zipfile.ZipFile(root / "dog/more.zip", "w") as archive:
        archive.writestr("dog/9.png", encoded(picture(99)))
    data = probe.data.load(root)
    assert data.class_names == CLASSES
    ids = data["train"].ids + data["test"].ids
    assert len(ids) == 15
    assert "cat/deep/deeper/0.png" in ids


def test_few_shots_are_other_images_in_every_draw_and_leave_out_validation(tmp_path):
    data = probe.data.load(write_folder(tmp_path, splits=("train", "val", "test"), each=8))
    draws = [few_shot(data, 2, draw) for draw in range(3)]
    assert all(np.array_equal(few["train"].class_counts, [2, 2]) for few in draws)
    assert len({tuple(few["train"].ids) for few in draws}) == 3
    assert few_shot(data, 2, 1)["train"].ids == draws[1]["train"].ids
    assert all(few.splits == ("train", "test") for few in draws)
    assert data.splits == ("train", "val", "test")
    with pytest.raises(UserError, match=r'data.shots=9: class "cat" has 8 training images \(2 classes'):
        few_shot(data, 9)


def test_a_summary_names_what_is_odd(tmp_path):
    root = write_folder(tmp_path, each=4)
    (root / "train/cat/x.png").write_bytes(b"no image")
    (root / "test/dog/copy.png").write_bytes((root / "train/dog/1.png").read_bytes())
    picture(7, (400, 40)).save(root / "train/dog/narrow.png")
    found = summarise(probe.data.load(root))
    assert found["splits"]["train"]["images"] == 10
    assert found["splits"]["test"]["per_class"] == {"least": 4, "median": 4.5, "most": 5}
    whys = {one["why"] for one in found["splits"]["train"]["suspect"]["images"]}
    assert found["splits"]["train"]["suspect"]["count"] == 10  # the others are tiny
    assert "12 x 9 pixels only" in whys
    assert found["duplicates"]["train_test"]["count"] == 1
    told = "\n".join(text.lines(found))
    for words in ("2 classes", "1 in both test and train", "10 suspect images in all", "4 to 5 of a class"):
        assert words in told
