"""What is stored beside the images can be asked for by name."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe.data
from probe.errors import UserError
from tests.support.tiny_datasets import write_parquet


def with_column(path, labels, name, values, seed=0):
    table = pq.read_table(write_parquet(path, labels, seed=seed))
    pq.write_table(table.append_column(name, pa.array(values)), path)


@pytest.fixture
def hospitals(tmp_path):
    with_column(tmp_path / "train-0.parquet", [0, 1], "hospital", ["north", "south"])
    with_column(tmp_path / "train-1.parquet", [0, 1], "hospital", [None, "north"], seed=5)
    with_column(tmp_path / "test.parquet", [0, 1], "hospital", ["south", "south"], seed=9)
    return probe.data.load(tmp_path)


def test_a_column_of_a_table_has_one_plain_value_for_each_row(hospitals):
    assert hospitals["train"].column("hospital") == ["north", "south", None, "north"]
    assert hospitals["train"].columns == ["label", "hospital"]
    assert hospitals["test"].column("label") == [0, 1]


def test_a_subset_and_a_pickled_split_keep_their_columns(hospitals):
    part = pickle.loads(pickle.dumps(hospitals["train"].subset([3, 1], "part")))  # noqa: S301
    assert part.column("hospital") == ["north", "south"]


def test_a_column_that_is_not_there_is_answered_with_those_that_are(hospitals):
    with pytest.raises(UserError, match=r'no column "hopsital"; did you mean "hospital".*label, hospital'):
        hospitals["train"].column("hopsital")
    with pytest.raises(UserError, match="none beside its images"):
        probe.data.load("digits")["train"].column("hospital")


def test_a_column_that_one_file_lacks_is_not_offered(tmp_path):
    with_column(tmp_path / "train-0.parquet", [0, 1], "camera", ["a", "b"])
    write_parquet(tmp_path / "train-1.parquet", [0, 1], seed=5)
    write_parquet(tmp_path / "test.parquet", [0, 1], seed=9)
    assert probe.data.load(tmp_path)["train"].columns == ["label"]


def test_a_file_exchanged_before_its_column_is_read_is_noticed(tmp_path, hospitals):
    with_column(tmp_path / "train-1.parquet", [1, 0, 1], "hospital", ["x", "y", "z"])
    with pytest.raises(UserError, match="has changed"):
        hospitals["train"].column("hospital")


@pytest.mark.parametrize(
    ("place", "prefix"),
    [("metadata.csv", "train/"), ("train/metadata.csv", "")],
    ids=["above", "in the split"],
)
def test_metadata_beside_an_image_folder(folder, place, prefix):
    rows = ["file_name,camera,note", f"{prefix}cat/0.png,left,", f"{prefix}dog/2.png,right,blurred"]
    (folder / place).write_text("\ufeff" + "\n".join(rows))
    train = probe.data.load(folder)["train"]
    assert train.columns == ["file_name", "camera", "note"]
    assert train.column("camera") == ["left", None, None, None, None, "right"]
    assert train.column("note") == [None, None, None, None, None, "blurred"]
    assert probe.data.load(folder)["train"].fingerprint == train.fingerprint


def test_metadata_that_names_no_files_is_said(folder):
    (folder / "metadata.csv").write_text("name,camera\na,b\n")
    with pytest.raises(UserError, match="no column file_name"):
        probe.data.load(folder)["train"].column("camera")
