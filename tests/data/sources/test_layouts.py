"""Any layout that people have gives the same images, the same classes and, without a test split, one cut."""

from __future__ import annotations

import json
import pickle
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pytest

import probe.data
from backbones.torchvision_ops import ensure_torchvision
from probe.errors import UserError
from tests.support.layouts import CLASSES, LAYOUTS, SAMPLES, arrow, flat, load, saved, shards, table
from tests.support.tiny_datasets import picture


def contents(split):
    return sorted((image.tobytes(), split.class_names[label]) for image, label in split)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_images_in_the_same_cut(layout, tmp_path):
    expected = probe.data.load(flat(tmp_path / "expected"))
    data = load(layout, tmp_path / "given")
    assert data.class_names == CLASSES
    assert data.splits == ("train", "test")
    assert [len(data[s]) for s in data.splits] == [12, 3]
    assert np.array_equal(data["test"].class_counts, [1, 1, 1])
    assert data.test_cut.images == 3
    assert "there is no test split: 3 images, 20% of every class" in data.note
    train = pickle.loads(pickle.dumps(data["train"]))  # noqa: S301 - as workers get it
    if layout == "in memory":  # its pixels are hashed, not its files, so that its cut is another
        assert sorted(contents(train) + contents(data["test"])) == sorted(
            contents(expected["train"]) + contents(expected["test"])
        )
        return
    assert contents(train) == contents(expected["train"])
    assert contents(data["test"]) == contents(expected["test"])
    assert sorted(train.digests.tolist()) == sorted(expected["train"].digests.tolist())


@pytest.mark.parametrize(
    "layout", ["csv", "jsonl", "parquet", "save_to_disk", "arrow", "webdataset", "Dataset", "DataFrame"]
)
def test_further_columns_come_along(layout, tmp_path):
    assert load(layout, tmp_path)["train"].column("camera") == ["left"] * 12


def test_the_same_ids_give_the_same_fingerprints_from_parquet_arrow_and_objects(tmp_path):
    kinds = ("parquet", "save_to_disk", "arrow", "Dataset")
    prints = {load(kind, tmp_path / kind)["train"].fingerprint for kind in kinds}
    assert len(prints) == 1


def test_the_cut_stays_when_files_are_renamed_and_keeps_copies_together(tmp_path):
    root = flat(tmp_path / "a")
    tested = {image.tobytes() for image, _ in probe.data.load(root)["test"]}
    for file in sorted(root.rglob("*.png")):
        file.rename(file.with_name(f"z{file.name}"))
    assert {image.tobytes() for image, _ in probe.data.load(root)["test"]} == tested
    for file in sorted(root.rglob("*.png")):
        shutil.copy(file, file.with_name(f"copy-{file.name}"))
    data = probe.data.load(root)
    assert not {i.tobytes() for i, _ in data["test"]} & {i.tobytes() for i, _ in data["train"]}


def test_a_share_of_the_cut_can_be_chosen_and_a_test_split_is_never_cut(tmp_path, folder):
    assert len(probe.data.load(flat(tmp_path / "a"), test_fraction=0.4)["test"]) == 6
    with pytest.raises(UserError, match=r"has a test split; leave out data.test_fraction"):
        probe.data.load(folder, test_fraction=0.4)


def test_a_class_of_one_image_cannot_be_cut(tmp_path):
    root = flat(tmp_path)
    (root / "owl").mkdir()
    shutil.copy(root / "cat/0.png", root / "owl/0.png")
    with pytest.raises(UserError, match=r'class "owl" has one image, and there is no test split'):
        probe.data.load(root)


@pytest.mark.parametrize("name", ["test", "train", "validation"])
def test_a_class_may_be_called_like_a_split(tmp_path, name):
    root = flat(tmp_path)
    (root / "fox").rename(root / name)
    assert set(probe.data.load(root).class_names) == {"cat", "dog", name}


def refuse(given, *words, **options):
    with pytest.raises(UserError) as caught:
        probe.data.load(given, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_csv_is_text_splits_by_a_column_and_may_use_other_separators(tmp_path):
    flat(tmp_path)
    cells = ["path;species;split", *(f"{file};{('NA', '007', 'None')[k]};{'test' if i % 5 == 0 else 'train'}"
             for i, (file, k, _) in enumerate(SAMPLES))]  # fmt: skip
    (tmp_path / "t.csv").write_text("\ufeff" + "\r\n".join(cells), encoding="utf-8")
    data = probe.data.load(tmp_path / "t.csv", label="species")
    assert data.class_names == ("007", "NA", "None")
    assert [len(data[s]) for s in ("train", "test")] == [12, 3]
    assert data.test_cut is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image,label\ncat/0.png,\n", ("labels are missing",)),
        ("image,label\n,cat\n", ("row 1", "image")),
        ("image,label\nnowhere.png,cat\n", ("1 of the 1 images", "nowhere.png")),
        ("picture,label\nx,cat\n", ("no column of paths", "data.image=NAME", "picture, label")),
        ("image,kind\ncat/0.png,cat\n", ("no label column", "data.label=NAME")),
        ("image,image\na,b\n", ('2 columns called "image"',)),
        ("image,label\ncat/0.png,cat,more\n", ("cannot read the table",)),
        ("", ("cannot read the table",)),
    ],
)
def test_a_bad_csv_is_one_line(tmp_path, text, words):
    flat(tmp_path)
    (tmp_path / "t.csv").write_text(text)
    refuse(tmp_path / "t.csv", "t.csv", *words)


def test_several_labels_for_an_image_are_one_line(tmp_path):
    flat(tmp_path)
    (tmp_path / "t.jsonl").write_text('{"image": "cat/0.png", "label": ["cat", "dog"]}\n')
    refuse(tmp_path / "t.jsonl", "several for each image", "data.label=NAME")


def test_columns_and_splits_by_name(tmp_path):
    from tests.support.tiny_datasets import write_parquet

    for name, labels in {"train": [0, 1], "validation": [1, 0], "test": [-1, -1]}.items():
        write_parquet(tmp_path / f"{name}.parquet", labels, label="species", seed=len(name))
    refuse(tmp_path, "out of range", "data.splits.test=NAME")
    data = probe.data.load(tmp_path, splits={"test": "validation"}, label="species", image="image")
    assert data["test"].labels.tolist() == [1, 0]
    assert data.splits == ("train", "test")
    refuse(tmp_path, 'no split "valid"', "validation", splits={"test": "valid"})
    refuse(tmp_path, 'no column "specie"', "data.label", "species", label="specie")
    refuse(tmp_path, 'no split "tset"', splits={"tset": "validation"})


def test_a_subset_of_classes_or_ids(tmp_path):
    root = flat(tmp_path / "a")
    data = probe.data.load(root, subset="fox, cat")
    assert data.class_names == ("cat", "fox")
    assert len(data["train"]) + len(data["test"]) == 10
    refuse(root, 'no class "fix"', "fox", subset=["fix"])
    ids = [file for file, k, _ in SAMPLES if k < 2][:8]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    some = probe.data.load(root, subset=tmp_path / "ids.txt")
    assert sorted(some["train"].ids + some["test"].ids) == sorted(ids)
    assert some.class_names == ("cat", "dog")
    (tmp_path / "ids.txt").write_text("nowhere.png")
    refuse(root, "1 of its 1 ids are not in the data", subset=tmp_path / "ids.txt")


def test_a_saved_folder_may_not_name_other_places_and_misses_no_shard(tmp_path):
    root = saved(tmp_path / "a")
    state = json.loads((root / "state.json").read_text())
    for name in ("../b.arrow", "/etc/passwd", "", None):
        (root / "state.json").write_text(json.dumps({**state, "_data_files": [{"filename": name}]}))
        refuse(root, "does not name its files")
    (root / "state.json").write_text(json.dumps(state))
    (root / "data-00001-of-00002.arrow").unlink()
    refuse(root, "1 of 2 files are missing", "data-00001-of-00002.arrow")


def test_an_arrow_file_that_is_exchanged_compressed_or_damaged_is_noticed(tmp_path):
    root = arrow(tmp_path)
    train = probe.data.load(root)["train"]
    file = root / "train.arrow"
    whole = file.read_bytes()
    with pa.OSFile(str(file), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, table().schema, options=options) as writer:
            writer.write_table(pa.concat_tables([table()] * 50).combine_chunks())
    with pytest.raises(UserError, match="has changed"):
        train[0]
    refuse(root, "compressed")
    file.write_bytes(whole[: len(whole) // 2])
    refuse(root, "cannot read", "train.arrow")


def test_paths_without_bytes_are_never_opened(tmp_path):
    flat(tmp_path / "pictures")
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [{"bytes": None, "path": str(tmp_path / "pictures" / file)} for file, _, _ in SAMPLES]
    bare = (
        table()
        .set_column(0, "image", pa.array(images, struct))
        .replace_schema_metadata(table().schema.metadata)
    )
    import datasets

    rows = datasets.Dataset(datasets.table.InMemoryTable(bare))
    with pytest.raises(UserError, match="perhaps only paths"):
        probe.data.from_datasets(rows)
    with (
        pa.OSFile(str(tmp_path / "train.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, bare.schema) as writer,
    ):
        writer.write_table(bare)
    refuse(tmp_path / "train.arrow", "perhaps only paths")


@pytest.mark.parametrize("damage", ["cut", "gzip", "no image", "no label", "two images"])
def test_a_bad_shard_is_one_line(tmp_path, damage):
    root = shards(tmp_path)
    file = root / "train-001.tar"
    words = {"cut": "cannot read", "gzip": "cannot read", "no image": '"0009" has no image',
             "no label": "labels are missing", "two images": "has 2 images"}[damage]  # fmt: skip
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:3000])
    elif damage == "gzip":
        with tarfile.open(file, "w:gz") as tar:
            tar.add(root / "train-000.tar", "x")
    else:
        with tarfile.open(file, "w") as tar:
            names = {
                "no image": ["0009.cls"],
                "no label": ["0009.png"],
                "two images": ["0009.png", "0009.jpg"],
            }
            for name in names[damage]:
                tar.addfile(tarfile.TarInfo(name))
    refuse(root, words, "train-001.tar")
    refuse(f"{root}/train-{{000..004}}.tar", "3 of 5 files are missing", "train-002.tar")


def test_objects_that_are_not_data_sets_are_named(tmp_path):
    with pytest.raises(UserError, match="streaming"):
        probe.data.from_datasets({"train": iter([])})
    with pytest.raises(UserError, match="without its transform"):
        probe.data.from_samples([(np.zeros((3, 4, 4), np.float32), i % 2) for i in range(6)])["train"][0]
    with pytest.raises(UserError, match="number of its class"):
        probe.data.from_samples([(picture(0), "cat")])


def test_a_torchvision_image_folder_is_read_by_its_files(tmp_path):
    ensure_torchvision()
    from torchvision.datasets import ImageFolder

    root = flat(tmp_path)
    data = probe.data.from_samples(ImageFolder(str(root)))
    assert data["train"].fingerprint == probe.data.load(root)["train"].fingerprint
