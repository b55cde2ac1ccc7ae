"""Features for other programs: `datasets`, pandas, parquet and NumPy files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from probe import data, features
from probe.cli import main
from probe.errors import UserError
from probe.features import files
from tests.support.feature_world import backbone


@pytest.fixture(scope="module")
def found(colours, cache):
    return features.extract(backbone(), data.load(colours)["test"], cache=cache)


def test_a_dataset_has_ids_features_and_the_names_of_the_classes(found):
    made = found.to_dataset()
    assert made["id"][:] == found.ids
    label = made.features["label"]
    assert [label.int2str(k) for k in made["label"]] == [found.class_names[k] for k in found.y]
    assert np.array_equal(np.array(made["features"]), np.asarray(found.X))


def test_a_frame_is_indexed_by_id_with_categories_for_labels(found):
    frame = found.to_pandas()
    assert frame.index.tolist() == found.ids
    assert frame["label"].tolist() == [found.class_names[k] for k in found.y]
    assert list(frame["label"].cat.categories) == list(found.class_names)
    assert np.array_equal(frame.drop(columns="label").to_numpy(), np.asarray(found.X))


def test_parquet_and_npy_hold_the_same_rows(found, tmp_path, monkeypatch):
    from datasets import load_dataset

    monkeypatch.setattr(files, "BLOCK", 5)  # several blocks
    path = files.write({"test": found}, tmp_path / "p", "parquet")["test"]
    loaded = load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "hf"))["train"]
    assert loaded.features["label"].names == list(found.class_names)
    assert loaded["id"][:] == found.ids
    assert np.array_equal(np.array(loaded["features"]), np.asarray(found.X))
    array = files.write({"test": found}, tmp_path / "n", "npy")["test"]
    assert np.array_equal(np.load(array), np.asarray(found.X))
    assert np.load(tmp_path / "n" / "test-labels.npy").tolist() == found.y.tolist()
    assert np.load(tmp_path / "n" / "test-ids.npy").tolist() == found.ids
    assert json.loads((tmp_path / "n" / "classes.json").read_text()) == list(found.class_names)


def test_a_folder_that_holds_something_else_is_left_alone(found, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no features; give --out another folder"):
        files.write({"test": found}, tmp_path, "npy")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    files.write({"test": found}, tmp_path / "f", "npy")
    files.write({"test": found}, tmp_path / "f", "parquet")  # replaces its own
    assert not (tmp_path / "f" / "test-features.npy").exists()


def test_extract_writes_files_and_says_where(colours, cache, tmp_path):
    words = ["extract", "--image-size", "32", "--data", str(colours), "--cache", str(cache)]
    done = CliRunner().invoke(main, [*words, "--to", "npy", "--out", str(tmp_path / "f"), "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert [np.load(row["file"]).shape for row in rows] == [(60, 1280), (32, 1280)]
    refused = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "g")])
    assert refused.exit_code == 2
    assert "--to parquet or --to npy" in refused.output
