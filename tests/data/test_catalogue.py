"""The registered data sets, and what a name means."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import probe.data
from probe.data import catalogue, split_names
from probe.errors import UserError
from tests.support.tiny_datasets import write_folder, write_parquet, write_parquet_folder


def test_listing_imports_nothing_heavy():
    code = "import sys, probe.data.catalogue as c; assert len(c.rows()) >= 10; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "pyarrow", "datasets", "PIL", "sklearn", "huggingface_hub"} & set(loaded)


@pytest.mark.parametrize("row", catalogue.rows(), ids=lambda row: row.name)
def test_every_row_is_whole(row):
    assert {"train", "test"} <= set(row.sizes) <= {"train", "val", "test"}
    assert row.metric in catalogue.METRICS
    assert row.templates
    assert all(template.format("cat") != template for template in row.templates)
    assert row.classes > 1
    assert set(row.splits) <= set(row.sizes)
    assert row.revision is None or len(row.revision) == 40
    assert catalogue.find(row.name) is row


def test_the_hubs_odd_split_names_are_known():
    food = split_names.wanted(catalogue.find("food101"))
    assert food["test"][0] == "validation"
    assert "val" not in food
    assert split_names.wanted(catalogue.find("flowers"))["val"][0] == "validation"


def test_digits_are_scikit_learns_and_need_no_network():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    data = probe.data.load("digits")
    assert data.splits == ("train", "test")
    assert data.metric == "accuracy"
    rows = [int(i.split(":")[1]) for i in data["train"].ids + data["test"].ids]
    assert sorted(rows) == list(range(1797))
    labels = np.concatenate([data["train"].labels, data["test"].labels])
    assert np.array_equal(labels, theirs.target[rows])
    share = data["test"].class_counts / (data["test"].class_counts + data["train"].class_counts)
    assert np.abs(share - 0.25).max() < 0.005
    image, _ = data["train"][3]
    assert (image.mode, image.size) == ("RGB", (64, 64))
    small = np.asarray(image.convert("L").resize((8, 8))).astype(float).ravel()
    assert np.corrcoef(small, theirs.data[rows[3]])[0, 1] > 0.9


@pytest.fixture
def tiny_row(monkeypatch):
    row = catalogue.DatasetSpec(
        name="tiny",
        title="Tiny",
        classes=2,
        sizes={"train": 6, "test": 4},
        metric="mean_per_class",
        hub="nobody/tiny",
        splits={"test": "validation"},
        label=("fine", "label"),
        templates=("a {}, tiny.",),
    )
    monkeypatch.setitem(catalogue._by_name, "tiny", row)
    return row


def test_a_local_copy_of_a_registered_set_keeps_its_metric_and_prompts(tmp_path, tiny_row):
    data = probe.data.load("tiny", root=write_parquet_folder(tmp_path))
    assert (data.name, data.metric, data.templates) == ("tiny", "mean_per_class", ("a {}, tiny.",))
    assert data.source == str(tmp_path)


def test_the_rows_split_and_column_come_before_the_usual_ones(tmp_path, tiny_row):
    write_parquet(tmp_path / "train.parquet", [0, 1] * 3, label="fine")
    write_parquet(tmp_path / "validation.parquet", [0, 1] * 2, label="fine", seed=20)
    write_parquet(tmp_path / "test.parquet", [-1] * 9, label="fine", seed=40)  # unlabelled, as ImageNet's
    data = probe.data.load("tiny", root=tmp_path)
    assert data.splits == ("train", "test")
    assert data["test"].ids[0] == "validation.parquet:0"


def test_a_registered_set_can_be_an_image_folder(tmp_path, tiny_row):
    write_folder(tmp_path, splits=("train", "val"))
    for name in ("cat", "dog"):
        (tmp_path / f"val/{name}/0.png").unlink()
    assert len(probe.data.load("tiny", root=tmp_path)["test"]) == 4


def test_a_wrong_size_is_refused_with_both_numbers(tmp_path, tiny_row):
    write_folder(tmp_path / "a", each=3)
    with pytest.raises(UserError, match="tiny: test has 6 images, officially 4"):
        probe.data.load("tiny", root=tmp_path / "a")
    write_folder(tmp_path / "b", classes=("ape", "cat", "dog"))
    with pytest.raises(UserError, match="found 3 classes, the official number is 2"):
        probe.data.load("tiny", root=tmp_path / "b")


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match='unknown data set "pest"; did you mean "pets"'):
        probe.data.load("pest")
    with pytest.raises(UserError, match="there is no folder"):
        probe.data.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="does not exist"):
        probe.data.load("pets", root=tmp_path / "nowhere")
    for name in (tmp_path, "digits"):
        with pytest.raises(UserError, match="root is a local copy of a registered data set"):
            probe.data.load(name, root=tmp_path)
    for name, root in ((tmp_path, None), ("digits", None), ("pets", tmp_path)):
        with pytest.raises(UserError, match="revision abc is one of the hub's"):
            probe.data.load(name, root=root, revision="abc")


def test_a_relative_folder_of_one_word_is_a_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    assert probe.data.load("photos").class_names == ("cat", "dog")
