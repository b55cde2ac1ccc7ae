"""Files of one data set may write their classes and columns differently: labels are right, or it is said."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe.data
from probe.errors import UserError
from tests.support.tiny_datasets import encoded, picture, write_parquet


def classes_of(split):
    """What every image is said to be, by name."""
    return [split.class_names[label] for label in split.labels]


def refusal(path):
    with pytest.raises(UserError) as caught:
        probe.data.load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_names_in_another_order_within_a_split_keep_their_images(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [0, 1, 0], names=("cat", "dog"))
    write_parquet(tmp_path / "train-1.parquet", [0, 1, 0], names=("dog", "cat"), seed=10)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], names=("dog", "cat"), seed=90)
    data = probe.data.load(tmp_path)
    assert data.class_names == ("cat", "dog")  # train's first file decides
    assert classes_of(data["train"]) == ["cat", "dog", "cat", "dog", "cat", "dog"]
    assert classes_of(data["test"]) == ["dog", "cat"]


def test_the_same_labels_in_another_order_of_names_are_the_same_data(tmp_path):
    for name, names, labels in (("a", ("cat", "dog"), [0, 1]), ("b", ("dog", "cat"), [1, 0])):
        write_parquet(tmp_path / name / "train-0.parquet", [0, 1])
        write_parquet(tmp_path / name / "train-1.parquet", labels, names=names, seed=5)
        write_parquet(tmp_path / name / "test-0.parquet", labels, names=names, seed=9)
    a, b = (probe.data.load(tmp_path / name) for name in "ab")
    assert {s: a[s].fingerprint for s in a.splits} == {s: b[s].fingerprint for s in b.splits}


def test_other_classes_in_one_file_are_named_with_both_files(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [0, 1], names=("cat", "dog"))
    write_parquet(tmp_path / "train-1.parquet", [0, 1], names=("cat", "fox"), seed=10)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=90)
    message = refusal(tmp_path)
    for word in ("train-0.parquet and", "train-1.parquet do", "only in train-1.parquet: fox", "dog"):
        assert word in message


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (["dog", "cat"], {"names": ()}),  # texts beside declared names
        (["dog", "cat"], {"names": ("dog", "cat")}),
        (["dog", "cat"], {"names": (), "label_type": pa.large_string()}),
        (["dog", "cat"], {"names": (), "label_type": pa.dictionary(pa.int32(), pa.string())}),
        ([1, 0], {"label_type": pa.int32()}),
        ([1, 0], {"label_type": pa.uint8()}),
        ([True, False], {"names": ()}),
        ([1, 0], {"names": ()}),  # all that have names agree, so a number is a place in their list
        ([0, 1], {"names": ("dog", "cat"), "label": "species", "image": "photo"}),
        ([1, 0], {"label": "species", "binary": True}),
    ],
)
def test_label_types_and_columns_may_differ_between_files(tmp_path, labels, options):
    write_parquet(tmp_path / "train-0.parquet", [0, 1])
    write_parquet(tmp_path / "train-1.parquet", labels, seed=10, **options)
    write_parquet(tmp_path / "test-0.parquet", labels, seed=90, **options)
    data = probe.data.load(tmp_path)
    assert classes_of(data["train"]) == ["cat", "dog", "dog", "cat"]
    assert classes_of(data["test"]) == ["dog", "cat"]
    assert [data["train"][i][0].tobytes() for i in range(4)] == [picture(i).tobytes() for i in (0, 1, 10, 11)]
    assert len(data["train"].fingerprint) == 64


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"labels": [0, 1]}, {"labels": [0, 1], "names": ("dog", "cat")}),  # then which order has the third?
        ({"labels": ["cat", "dog"], "names": ()}, {"labels": ["cat", "dog"], "names": ()}),
    ],
)
def test_numbers_without_names_are_refused_where_they_could_mean_two_things(tmp_path, first, second):
    write_parquet(tmp_path / "train-0.parquet", **first)
    write_parquet(tmp_path / "train-1.parquet", seed=5, **second)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], names=(), seed=9)
    message = refusal(tmp_path)
    assert "test-0.parquet labels its images with numbers" in message


@pytest.mark.parametrize("twice", ["image", "label", "id"])
def test_a_column_that_stands_twice_is_named(tmp_path, twice):
    write_parquet(tmp_path / "train-0.parquet", [0, 1], ids=["a", "b"])
    table = pq.read_table(write_parquet(tmp_path / "test-0.parquet", [0, 1], ids=["c", "d"], seed=9))
    table = table.append_column(twice, table[twice])
    pq.write_table(table, tmp_path / "test-0.parquet")
    message = refusal(tmp_path)
    assert f'test-0.parquet has 2 columns called "{twice}"' in message


def test_a_column_that_nobody_reads_may_stand_twice(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [0, 1])
    table = pq.read_table(write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=9))
    for _ in range(2):
        table = table.append_column("note", pa.array(["x", "y"]))
    pq.write_table(table, tmp_path / "test-0.parquet")
    assert len(probe.data.load(tmp_path)["test"]) == 2


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from concurrent.futures import ThreadPoolExecutor
import probe.data
train = probe.data.load(sys.argv[1])["train"]
train.fingerprint
order = [(37 * i) % len(train) for i in range(len(train))]
with ThreadPoolExecutor(4) as pool:
    pixels = list(pool.map(lambda i: train[i][0].getpixel((0, 0)), order * 2))
assert pixels[: len(order)] == [(i % 256, i // 256, 7) for i in order], pixels
assert pixels[len(order) :] == pixels[: len(order)]
"""


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_more_files_than_may_be_open_are_read(tmp_path, compression):
    from PIL import Image

    for f in range(100):
        image = encoded(Image.new("RGB", (2, 2), (f % 256, f // 256, 7)))
        write_parquet(tmp_path / f"train-{f}.parquet", [f % 2], images=[image], compression=compression)
        renamed = tmp_path / f"train-{f:05d}-of-00100.parquet"
        (tmp_path / f"train-{f}.parquet").rename(renamed)
    write_parquet(tmp_path / "test.parquet", [0, 1], seed=900)
    done = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def bomb(path, rows, **columns):
    """A file in which one image and one label stand for any number of rows."""
    image = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([encoded(picture(0))]))
    table = pa.table({"image": image.cast(pa.binary()), "label": pa.array([0] * rows, pa.int8()), **columns})
    pq.write_table(table, path, row_group_size=1 << 22, compression="zstd")


def test_more_rows_than_a_file_can_hold_images_are_refused_before_they_are_read(tmp_path):
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=9)
    bomb(tmp_path / "train-0.parquet", 200_000)
    assert (tmp_path / "train-0.parquet").stat().st_size < 20_000
    message = refusal(tmp_path)
    assert "200,000 rows in" in message


def test_a_text_of_megabytes_is_not_repeated_for_every_row(tmp_path):
    write_parquet(tmp_path / "test-0.parquet", [0, 1], seed=9)
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int32()), pa.array(["x" * 1_000_000]))
    image = pa.array([encoded(picture(0))] * 9000)
    table = pa.table({"image": image, "label": [0] * 9000, "id": ids})
    pq.write_table(table, tmp_path / "train-0.parquet", store_schema=False)
    message = refusal(tmp_path)
    assert "a text of 1,000,000 bytes in id" in message


def test_metadata_that_is_nested_without_end_is_no_metadata(tmp_path):
    for name in ("train", "test"):
        table = pq.read_table(write_parquet(tmp_path / f"{name}.parquet", [0, 1], names=()))
        deep = json.dumps({"info": 0})[:-1].encode() + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
        pq.write_table(table.replace_schema_metadata({"huggingface": deep}), tmp_path / f"{name}.parquet")
    assert probe.data.load(tmp_path).class_names == ("0", "1")
