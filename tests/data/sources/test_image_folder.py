"""An image folder becomes a data set, or one clear line."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import probe.data
from probe.errors import UserError
from tests.support.tiny_datasets import picture, write_folder


def test_classes_are_the_sorted_folder_names_and_ids_are_relative_paths(folder):
    data = probe.data.load(folder)
    assert data.name == "photos"
    assert data.class_names == ("cat", "dog")
    assert data.splits == ("train", "test")
    assert "val" not in data
    train = data["train"]
    assert train.ids[0] == "train/cat/0.png"
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.labels.dtype == np.int64
    image, label = train[4]
    assert (image.mode, image.size, label) == ("RGB", (12, 9), 1)
    assert np.array_equal(np.asarray(image), np.asarray(picture(11)))


def test_an_official_validation_folder_is_its_own_split(tmp_path):
    data = probe.data.load(write_folder(tmp_path, splits=("train", "validation", "test")))
    assert data.splits == ("train", "val", "test")
    assert data["val"].ids[0].startswith("validation/")


def test_hidden_files_and_other_files_are_ignored(folder):
    before = probe.data.load(folder)["train"].ids
    (folder / "train/cat/.hidden.png").write_bytes(b"x")
    (folder / "train/cat/notes.txt").write_text("x")
    (folder / "train/.cache").mkdir()
    (folder / "train/cat/.thumbnails").mkdir()
    (folder / ".git").mkdir()
    assert probe.data.load(folder)["train"].ids == before


def test_nested_folders_belong_to_their_class(folder):
    (folder / "train/cat/more").mkdir()
    picture(77).save(folder / "train/cat/more/x.JPG")
    assert "train/cat/more/x.JPG" in probe.data.load(folder)["train"].ids


def test_a_loop_of_links_ends(folder):
    (folder / "train/cat/again").symlink_to(folder / "train/cat", target_is_directory=True)
    (folder / "train/dog/up").symlink_to(folder / "train", target_is_directory=True)
    assert len(probe.data.load(folder)["train"]) >= 6


def test_a_linked_class_folder_is_read(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    picture(5).save(tmp_path / "elsewhere/5.png")
    for split in ("train", "test"):
        (folder / split / "emu").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert probe.data.load(folder).class_names == ("cat", "dog", "emu")


def refuse(path, *words):
    with pytest.raises(UserError) as caught:
        probe.data.load(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_bad_folders_are_refused_in_one_line(tmp_path):
    refuse(tmp_path / "nowhere", "no folder", "nowhere")
    refuse(write_folder(tmp_path / "a", splits=("test",)), "no train split", "it has test")
    refuse(write_folder(tmp_path / "b", splits=("test",)), "no train split")
    refuse(write_folder(tmp_path / "c", classes=("cat",)), "one class only", "cat")
    (tmp_path / "d").mkdir()
    refuse(tmp_path / "d", "no labelled images", "it holds nothing")
    (tmp_path / "file.txt").write_text("x")
    refuse(tmp_path / "file.txt", "is a file, not a folder")


def test_a_class_without_images_is_named(folder):
    (folder / "train/emu").mkdir()
    refuse(folder, '"emu" has no images')


def test_a_split_without_class_folders_is_named(folder):
    (folder / "val").mkdir()
    refuse(folder, "val has no class folders")


def test_differing_classes_are_listed_by_side(folder):
    (folder / "test/dog").rename(folder / "test/fox")
    refuse(folder, "train and test do not have the same classes", "only in train: dog", "only in test: fox")


def test_a_validation_folder_may_lack_a_class_and_keeps_trains_numbers(tmp_path):
    root = write_folder(tmp_path, classes=("ant", "bee", "cat"), splits=("train", "val", "test"))
    shutil.rmtree(root / "val/ant")
    for image in (root / "val/bee").iterdir():
        image.unlink()  # a folder without images is as good as none
    val = probe.data.load(root)["val"]
    assert val.class_names == ("ant", "bee", "cat")
    assert val.labels.tolist() == [2, 2, 2]
    assert val.ids[0] == "val/cat/0.png"


def test_a_validation_class_that_train_does_not_know_is_refused(tmp_path):
    root = write_folder(tmp_path, splits=("train", "val", "test"))
    (root / "val/dog").rename(root / "val/fox")
    refuse(root, "train and val do not have the same classes", "only in val: fox")


@pytest.mark.parametrize("split", ["train", "test"])
def test_train_and_test_may_not_lack_a_class(tmp_path, split):
    root = write_folder(tmp_path, splits=("train", "val", "test"))
    shutil.rmtree(root / split / "dog")
    refuse(root, "do not have the same classes", "dog")
