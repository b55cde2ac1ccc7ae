"""Identical images are counted and named: leaks into test, images under two labels, copies within a split."""

import shutil
import time

import numpy as np
import pytest

import probe.data
from probe.data import duplicates
from probe.data.dataset import Split
from tests.support.tiny_datasets import write_folder


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos")


def test_where_every_image_stands_once_nothing_is_said(photos):
    data = probe.data.load(photos)
    found = duplicates.find(data.by_name)
    assert {kind: part["count"] for kind, part in found.items()} == dict.fromkeys(found, 0)
    assert duplicates.remark(found) is None


def test_leaks_two_labels_and_copies_are_counted_and_named(photos):
    shutil.copy(photos / "train/cat/0.png", photos / "test/cat/leak.png")
    shutil.copy(photos / "train/cat/1.png", photos / "train/dog/also.png")
    shutil.copy(photos / "test/dog/2.png", photos / "test/dog/twice.png")
    shutil.copy(photos / "test/dog/2.png", photos / "test/dog/thrice.png")
    data = probe.data.load(photos)
    found = duplicates.find(data.by_name)
    assert found["train_test"] == {
        "count": 1,
        "images": [{"test": "test/cat/leak.png", "train": "train/cat/0.png"}],
    }
    assert found["two_labels"]["count"] == 1
    assert found["two_labels"]["images"] == [
        [
            {"split": "train", "id": "train/cat/1.png", "class": "cat"},
            {"split": "train", "id": "train/dog/also.png", "class": "dog"},
        ]
    ]
    assert found["within"]["count"] == 3  # one more in train, two more in test
    assert found["within"]["images"][1] == {
        "split": "test",
        "ids": ["test/dog/2.png", "test/dog/thrice.png", "test/dog/twice.png"],
    }
    said = duplicates.remark(found)
    for word in (
        '1 in both test and train (the first is "test/cat/leak.png")',
        "1 under two labels",
        "3 repeated within a split",
    ):
        assert word in said
    assert "\n" not in said


def test_counts_are_full_and_names_are_few(photos):
    for i in range(9):
        shutil.copy(photos / "train/cat/0.png", photos / f"test/dog/leak{i}.png")
    found = duplicates.find(probe.data.load(photos).by_name)
    assert found["train_test"]["count"] == 9
    assert len(found["train_test"]["images"]) == duplicates.SHOWN
    assert found["two_labels"]["count"] == 1
    assert len(found["two_labels"]["images"][0]) == duplicates.SHOWN


def test_unreadable_and_left_out_images_are_no_copies_of_each_other(photos):
    for name in ("x", "y"):
        (photos / f"train/cat/{name}.png").symlink_to(photos / "nowhere")
        (photos / f"test/dog/{name}.png").write_bytes(b"the same rubbish")
    data = probe.data.load(photos)
    left_out = [f"{place}/{name}.png" for place in ("train/cat", "test/dog") for name in "xy"]
    found = duplicates.find(data.by_name, left_out)
    assert all(part["count"] == 0 for part in found.values())


def test_a_part_of_a_split_knows_its_own_digests(photos):
    shutil.copy(photos / "train/cat/0.png", photos / "test/cat/leak.png")
    data = probe.data.load(photos)
    without = data["train"].subset(np.arange(1, 6), "train")
    assert duplicates.find({"train": without, "test": data["test"]})["train_test"]["count"] == 0


class Drawn:
    """Digests of a million images that nobody has to store."""

    def __init__(self, number, seed):
        self.found = np.random.default_rng(seed).integers(0, 256, (number, 32), dtype=np.uint8)

    def digests(self):
        return self.found


def test_a_million_images_take_a_moment():
    train, test = Drawn(1_280_000, 1), Drawn(50_000, 2)
    test.found[7] = train.found[1_000_000]
    test.found[8, :8] = train.found[5, :8]  # alike in the part that is sorted, and another image
    splits = {
        name: Split(name, images, np.zeros(len(images.found)), [""] * len(images.found), ("a", "b"))
        for name, images in (("train", train), ("test", test))
    }
    began = time.process_time()
    found = duplicates.find(splits)
    assert time.process_time() - began < 3.0
    assert found["train_test"]["count"] == 1


def test_a_run_says_it_in_result_table_and_page(tmp_path):
    import json

    from click.testing import CliRunner

    from probe.cli import main

    photos = write_folder(tmp_path / "photos")
    shutil.copy(photos / "train/cat/0.png", photos / "test/dog/leak.png")
    words = ["run", "--backbone", "cifar-resnet20", "--data", str(photos), "--l2", "1", "features.workers=0"]
    done = CliRunner().invoke(
        main, [*words, "--out", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache")]
    )
    assert done.exit_code == 0, done.output
    (run,) = (tmp_path / "runs").glob("[!.]*")
    result = json.loads((run / "result.json").read_text())
    assert result["data"]["duplicates"]["train_test"]["images"] == [
        {"test": "test/dog/leak.png", "train": "train/cat/0.png"}
    ]
    assert result["data"]["duplicates"]["two_labels"]["count"] == 1
    for told in (" ".join(done.output.split()), (run / "report.html").read_text()):
        assert "identical images: 1 in both test and train" in told
