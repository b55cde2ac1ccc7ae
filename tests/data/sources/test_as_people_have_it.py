"""Data as it comes from spreadsheets, other systems and careless hands: read as it is meant, or one line."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

import probe.data
from probe.data.summary import summarise
from probe.errors import UserError
from tests.support.layouts import CLASSES, SAMPLES, flat, parquet, shards


def refuse(given, *words, **options):
    with pytest.raises(UserError) as caught:
        probe.data.load(given, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def with_splits(root, names):
    """train and test of every class, under these names."""
    for file, _, content in SAMPLES:
        which = names[1] if file.endswith("0.png") else names[0]
        (root / which / file).parent.mkdir(parents=True, exist_ok=True)
        (root / which / file).write_bytes(content)
    return root


def table(root, header, row, name="t.csv"):
    flat(root)
    lines = [header, *(row.format(file=file, label=CLASSES[k], k=k) for file, k, _ in SAMPLES)]
    (root / name).write_text("\n".join(lines))
    return root / name


def test_capital_letters_in_names_of_splits_columns_and_files_do_not_matter(tmp_path):
    data = probe.data.load(with_splits(tmp_path / "a", ("Train", "TEST")))
    assert data.class_names == CLASSES
    assert [len(data[s]) for s in data.splits] == [12, 3]
    path = table(tmp_path / "b", "Path,Label,Split", "{file},{label},Train", "T.CSV")
    path.write_text(path.read_text().replace("0.png,cat,Train", "0.png,cat,TEST"))
    refuse(path, "2 classes have no images in test")  # so its column was read


def test_a_blank_after_the_comma_belongs_to_it(tmp_path):
    data = probe.data.load(table(tmp_path, "label, path", "{label}, {file}"))
    assert data.class_names == CLASSES
    assert set(data["train"].ids) < {file for file, _, _ in SAMPLES}


def test_backslashes_of_windows_get_a_hint(tmp_path):
    path = table(tmp_path, "path,label", "{file},{label}")
    path.write_text(path.read_text().replace("/", "\\"))
    refuse(path, "15 of the 15 images of t.csv", "backslashes, as on Windows: write / instead")


def test_an_absolute_path_below_the_table_is_the_id_that_a_relative_one_is(tmp_path):
    relative = probe.data.load(table(tmp_path / "a", "path,label", "{file},{label}"))
    absolute = probe.data.load(table(tmp_path / "b", "path,label", f"{tmp_path}/b/{{file}},{{label}}"))
    assert absolute["train"].fingerprint == relative["train"].fingerprint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,label\ncat/0.png,caf\xe9\n".encode("latin1"), ("UTF-8",)),
        ("path,label\ncat/0.png,cat\n".encode("utf-16"), ("UTF-16", "save it as CSV in UTF-8")),
        (b"path,label,split\ncat/0.png,cat,train\ndog/0.png,dog,\n", ('row 2 has no "split"',)),
    ],
)
def test_a_table_that_would_be_misread_is_refused(tmp_path, content, words):
    flat(tmp_path)
    (tmp_path / "t.csv").write_bytes(content)
    refuse(tmp_path / "t.csv", *words)


def test_a_json_table_of_columns_or_of_nothing_is_one_line(tmp_path, capfd):
    flat(tmp_path)
    (tmp_path / "t.json").write_text(json.dumps({"image": ["cat/0.png"], "label": ["cat"]}))
    refuse(tmp_path / "t.json", "no column of paths", "one for each row", "image (list<")
    (tmp_path / "t.json").write_text('{"image":')
    refuse(tmp_path / "t.json", "cannot read the table")
    assert capfd.readouterr().err == ""  # `datasets` would log it


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_metadata_labels_images_that_have_no_class_folders(tmp_path, name):
    for split, rows in (("train", SAMPLES[1:]), ("test", SAMPLES[::5])):
        (tmp_path / split).mkdir()
        lines = ["file_name,label"] if name.endswith("csv") else []
        for file, k, content in rows:
            flat_name = file.replace("/", "-")
            (tmp_path / split / flat_name).write_bytes(content)
            row = {"file_name": flat_name, "label": CLASSES[k]}
            lines.append(json.dumps(row) if name.endswith("jsonl") else ",".join(row.values()))
        (tmp_path / split / name).write_text("\n".join(lines))
    data = probe.data.load(tmp_path)
    assert data.class_names == CLASSES
    assert data["test"].ids == ["test/cat-0.png", "test/dog-0.png", "test/fox-0.png"]
    assert len(probe.data.load(tmp_path / "train")["train"]) == len(SAMPLES) - 1 - 3  # less the cut


def test_classes_beside_the_only_split_are_not_lost_silently(tmp_path):
    flat(tmp_path)
    flat(tmp_path / "train")
    refuse(tmp_path, "classes in train/", "images in cat, dog, fox beside it", "data.splits.train=train")
    assert len(probe.data.load(tmp_path, splits={"train": "train"})["train"]) == 12


def test_a_folder_without_labels_says_what_it_holds(tmp_path):
    (tmp_path / "train-000.tar.gz").write_bytes(b"x")
    refuse(tmp_path, "no labelled images", "1 files, such as train-000.tar.gz", "not compressed")


def test_a_gap_between_numbered_files_is_a_missing_file(tmp_path):
    root = shards(tmp_path / "a", per_shard=5)
    (root / "train-001.tar").unlink()
    refuse(root, "numbered 0 to 2, and 1 are missing", "number 1")
    assert len(probe.data.load(f"{root}/train-{{000,002}}.tar")["train"]) == 8
    years = parquet(tmp_path / "b")
    (years / "train.parquet").rename(years / "train-2019.parquet")
    (years / "train-2021.parquet").write_bytes((years / "train-2019.parquet").read_bytes())
    refuse(years, "ids occur more than once")  # both were read: years are no count


def test_a_pattern_that_counts_down_is_named(tmp_path):
    refuse(f"{shards(tmp_path)}/train-{{001..000}}.tar", "{001..000} counts down", "{000..001}")


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_sample_that_stands_twice_in_a_shard_does_not_replace_the_first(tmp_path):
    members = [(f"{i % 2}.{end}", c) for i in range(4) for end, c in (("png", SAMPLES[i][2]), ("cls", b"0"))]
    refuse(write_tar(tmp_path / "train.tar", members), "0.png stands in it twice")


def test_bad_json_in_a_shard_is_named(tmp_path):
    path = write_tar(tmp_path / "train.tar", [("a.png", SAMPLES[0][2]), ("a.json", b"{")])
    refuse(path, "train.tar", "a.json is not JSON")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shots": 0}, "data.shots=0"),
        ({"test_fraction": 1.0}, "data.test_fraction=1"),
        ({"test_fraction": -0.5}, "data.test_fraction=-0.5"),
        ({"subset": " , "}, "data.subset names no class"),
    ],
)
def test_settings_that_leave_nothing_are_refused_from_python_too(tmp_path, options, words):
    refuse(flat(tmp_path), words, **options)


def test_a_summary_names_what_cannot_be_read_before_what_is_small(tmp_path):
    root = flat(tmp_path)  # all of it smaller than 32 pixels
    (root / "fox/zz.png").write_bytes(b"no image")
    found = summarise(probe.data.load(root))["splits"]
    first = [split["suspect"]["images"][0] for split in found.values()]
    assert {"id": "fox/zz.png", "why": "not an image"} in first
