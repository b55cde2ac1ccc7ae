"""A folder of parquet files becomes a data set, or one clear line."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe.data
from probe.data.sources import parquet_reader
from probe.errors import UserError
from probe.system import safe_parquet
from tests.support.tiny_datasets import encoded, picture, write_parquet, write_parquet_folder


def same_picture(image, seed):
    return np.array_equal(np.asarray(image), np.asarray(picture(seed)))


def test_the_hub_form_is_read_with_its_class_names(parquet_folder):
    data = probe.data.load(parquet_folder)
    assert data.class_names == ("cat", "dog")
    assert data.splits == ("train", "test")
    assert data["train"].labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data["train"].ids[2] == "train-00000-of-00001.parquet:2"
    for i in (5, 0, 3):
        image, _ = data["train"][i]
        assert image.mode == "RGB"
        assert same_picture(image, i)


@pytest.mark.parametrize(
    "options", [{}, {"compression": "snappy"}, {"use_dictionary": False}, {"binary": True}]
)
def test_every_row_is_reachable_in_any_order_whatever_the_encoding(tmp_path, options):
    n = 40
    write_parquet(tmp_path / "train-0.parquet", [0, 1] * (n // 2), row_group_size=7, **options)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=90, **options)
    train = probe.data.load(tmp_path)["train"]
    for i in np.random.default_rng(0).permutation(n):
        assert same_picture(train[int(i)][0], i)


def test_repeated_images_are_read_right(tmp_path):
    images = [encoded(picture(i % 2)) for i in range(10)]  # a dictionary page holds each once
    write_parquet(tmp_path / "train-0.parquet", [0, 1] * 5, images=images)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=90)
    train = probe.data.load(tmp_path)["train"]
    assert all(same_picture(train[i][0], i % 2) for i in range(10))


def test_uncompressed_images_are_read_in_place_and_nothing_is_held(tmp_path):
    write_parquet_folder(tmp_path)
    train = probe.data.load(tmp_path)["train"]
    train[3]
    reader = train._images._open()
    assert not reader._held
    assert reader._located[0, 0].shape == (6, 2)


def test_decompressed_row_groups_stay_within_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_reader, "HELD", 3000)
    write_parquet(tmp_path / "train-0.parquet", [0, 1] * 20, compression="snappy", row_group_size=4)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=90)
    train = probe.data.load(tmp_path)["train"]
    for i in range(40):
        train[i]
    held = train._images._open()._held
    assert 1 <= len(held) < 10
    assert sum(group.nbytes for group in held.values()) <= 3000


def test_a_compressed_row_group_too_large_for_random_access_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_reader, "TOO_LARGE", 100)
    write_parquet_folder(tmp_path, compression="snappy")
    with pytest.raises(UserError, match="row_group_size"):
        probe.data.load(tmp_path)["train"][0]


def test_several_files_make_one_split_in_their_order(tmp_path):
    for shard in range(2):
        write_parquet(tmp_path / f"data/train-0000{shard}-of-00002.parquet", [shard] * 3, seed=10 * shard)
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", [0, 1], seed=90)
    train = probe.data.load(tmp_path)["train"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.ids[4] == "data/train-00001-of-00002.parquet:1"
    assert same_picture(train[4][0], 11)


def test_string_labels_become_sorted_classes(tmp_path):
    write_parquet(tmp_path / "train.parquet", ["fox", "ape", "fox"], names=())
    write_parquet(tmp_path / "test.parquet", ["ape", "fox"], names=(), seed=9)
    data = probe.data.load(tmp_path)
    assert data.class_names == ("ape", "fox")
    assert data["train"].labels.tolist() == [1, 0, 1]


def test_plain_integer_labels_are_named_by_their_number(tmp_path):
    write_parquet_folder(tmp_path, names=())
    assert probe.data.load(tmp_path).class_names == ("0", "1")


def test_columns_are_found_by_their_type_when_their_names_are_unusual(tmp_path):
    write_parquet_folder(tmp_path, image="photo", label="species")
    data = probe.data.load(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert same_picture(data["train"][1][0], 1)


def test_the_id_column_names_the_samples_and_a_rare_repeat_is_told_apart(tmp_path):
    ids = [f"s{i}" for i in range(299)] + ["s0"]
    write_parquet(tmp_path / "train.parquet", [0, 1] * 150, ids=ids, images=[encoded(picture(0))] * 300)
    write_parquet(tmp_path / "test.parquet", [0, 1], ids=[1, 2], seed=9)
    data = probe.data.load(tmp_path)
    assert data["train"].ids[1] == "s1"
    assert data["train"].ids[0] == "s0 (train.parquet:0)"
    assert data["train"].ids[299] == "s0 (train.parquet:299)"
    assert data["test"].ids == ["1", "2"]


def refuse(path, *words):
    with pytest.raises(UserError) as caught:
        probe.data.load(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ([0, 1, 5], {}, ("label 5", "out of range", "2 classes")),
        ([0, 1, -1], {}, ("label -1", "out of range", "unlabelled")),
        ([0, None, 1], {}, ("1 labels are missing", ":1")),
        ([0.5, 1.0, 0.0], {"names": ()}, ("labels are double",)),
        ([[0], [1], [0]], {"names": ()}, ("labels are list",)),
        ([0, 0, 0], {}, ("1 classes have no images in train", "dog")),
        ([0, 0, 0], {"names": ("cat",)}, ("one class only", "cat")),
        ([0, 1, 0], {"names": ("cat", "fox")}, ("only in train: fox", "only in test: dog")),
        ([], {"label_type": pa.int64()}, ("train split has no images",)),
        ([0, 1, 0], {"ids": ["a", "a", "b"]}, ("1 ids occur more than once", '"a"')),
        ([0, 1, 0], {"label": "kind", "names": ()}, ("no label column", "image, kind")),
        ([0, 1, 0], {"images": [None] * 3}, ("holds no images", "paths")),
    ],
)
def test_bad_rows_are_refused_in_one_line(tmp_path, labels, options, words):
    write_parquet(tmp_path / "train.parquet", labels, **options)
    single = options.get("names") == ("cat",)
    write_parquet(
        tmp_path / "test.parquet", [0, 0] if single else [0, 1], names=("cat",) if single else ("cat", "dog")
    )
    refuse(tmp_path, *words)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("struct", [True, False])
def test_arrows_view_types_are_read_like_others(tmp_path, compression, struct):
    """As polars writes them."""
    for name, seed in (("train", 0), ("test", 50)):
        values = [encoded(picture(seed + i)) for i in range(4)]
        kind = (
            pa.struct({"bytes": pa.binary_view(), "path": pa.string_view()}) if struct else pa.binary_view()
        )
        images = pa.array([{"bytes": v, "path": "x"} for v in values] if struct else values, kind)
        columns = {
            "image": images,
            "label": pa.array(["dog", "cat", "cat", "dog"], pa.string_view()),
            "id": pa.array([f"{name}{i}" for i in range(4)], pa.string_view()),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", compression=compression)
    data = probe.data.load(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert data["train"].labels.tolist() == [1, 0, 0, 1]
    assert data["test"].ids[3] == "test3"
    assert same_picture(data["test"][2][0], 52)
    assert len(data["train"].fingerprint) == 64


def test_a_file_that_is_not_parquet_is_named(parquet_folder):
    (parquet_folder / "test-00000-of-00001.parquet").write_bytes(b"PAR1 or not")
    refuse(parquet_folder, "cannot read", "test-00000-of-00001.parquet")


def test_a_missing_image_column_lists_what_there_is(parquet_folder):
    pq.write_table(
        pa.table({"label": [0, 1], "text": ["a", "b"]}), parquet_folder / "test-00000-of-00001.parquet"
    )
    refuse(parquet_folder, "no image column", "label, text")


def test_a_missing_split_or_shard_is_named(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00003.parquet", [0, 1])
    write_parquet(tmp_path / "test.parquet", [0, 1])
    refuse(tmp_path, "2 of 3 files are missing", "number 1")


def test_two_configurations_side_by_side_are_not_mixed(tmp_path):
    for configuration in ("small", "large"):
        write_parquet_folder(tmp_path / configuration)
    refuse(tmp_path, "several data sets", "large, small")
    assert len(probe.data.load(tmp_path / "small")["train"]) == 6


def test_a_file_exchanged_during_the_run_is_noticed(parquet_folder):
    train = probe.data.load(parquet_folder)["train"]
    write_parquet(parquet_folder / "train-00000-of-00001.parquet", [0, 1] * 9)
    with pytest.raises(UserError, match="has changed"):
        train[0]


@pytest.mark.parametrize("rows", [2, 6, 18])
def test_a_file_exchanged_before_it_is_hashed_is_noticed(parquet_folder, rows):
    """Its digests would stand beside the labels of the other file."""
    train = probe.data.load(parquet_folder)["train"]
    write_parquet(parquet_folder / "train-00000-of-00001.parquet", [0, 1] * (rows // 2), seed=50)
    with pytest.raises(UserError, match="has changed"):
        train.fingerprint  # noqa: B018 - it hashes


def test_a_file_exchanged_while_its_labels_are_read_is_noticed(parquet_folder, monkeypatch):
    """The other file has the same layout, so that reading it by the first one's footer succeeds."""
    read, labels = safe_parquet.columns, []

    def exchange(path, *rest):
        write_parquet(path, [1, 0, 1, 0, 1, 0])
        columns = read(path, *rest)
        labels.append(columns["label"].to_pylist())
        return columns

    monkeypatch.setattr(safe_parquet, "columns", exchange)
    with pytest.raises(UserError, match=r"train-00000-of-00001.parquet has changed while it was being read"):
        probe.data.load(parquet_folder)
    assert labels == [[1, 0, 1, 0, 1, 0]]


def test_files_of_one_size_and_time_that_change_places_are_noticed(tmp_path):
    for name, labels in (("train-0", [0, 1]), ("train-1", [1, 0]), ("test", [0, 1])):
        write_parquet(tmp_path / f"{name}.parquet", labels, images=[encoded(picture(i)) for i in range(2)])
    one, other = tmp_path / "train-0.parquet", tmp_path / "train-1.parquet"
    assert one.stat().st_size == other.stat().st_size
    for path in (one, other):
        os.utime(path, ns=(0, 10**18))
    train = probe.data.load(tmp_path)["train"]
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    with pytest.raises(UserError, match="has changed"):
        train.fingerprint  # noqa: B018 - it hashes
