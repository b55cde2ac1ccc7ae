"""List files: splits are exactly what the lists name, published sizes are checked, mistakes are one line."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import probe.data
from probe import recipe
from probe.data import catalogue
from probe.errors import UserError
from tests.support.tiny_datasets import picture

COUNTS = {"train": [4, 2, 1], "val": [1, 1, 1], "test": [2, 2, 2]}


def write(root, lists, names, folder="{split}/n{k}/{i}.png", counts=COUNTS):
    """Images and their list files, laid out as ImageNet-LT is; another image stays unnamed."""
    lists.mkdir(parents=True, exist_ok=True)
    for split, file in names.items():
        lines = []
        for k, count in enumerate(counts[split]):
            for i in range(count):
                path = folder.format(split=split, k=k, i=i)
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                picture(1000 * k + 10 * i + len(split)).save(root / path)
                lines.append(f"{path} {k}\n")
        (lists / file).write_text("".join(reversed(lines)))
    picture(5).save(root / "unnamed.png")
    return root


@pytest.fixture
def small(monkeypatch):
    """The three published sets with the sizes of a tiny copy."""
    sizes = {name: sum(each) for name, each in COUNTS.items()}
    for name in ("imagenet-lt", "places-lt", "inat2018"):
        row = catalogue.find(name)
        few = dataclasses.replace(row, classes=3, sizes={split: sizes[split] for split in row.sizes})
        monkeypatch.setitem(catalogue._by_name, name, few)


@pytest.mark.parametrize(
    ("name", "classes", "sizes"),
    [
        ("imagenet-lt", 1000, {"train": 115_846, "val": 20_000, "test": 50_000}),
        ("places-lt", 365, {"train": 62_500, "val": 7_300, "test": 36_500}),
        ("inat2018", 8142, {"train": 437_513, "test": 24_426}),
    ],
)
def test_the_published_sets_have_their_published_sizes(name, classes, sizes):
    row = catalogue.find(name)
    assert (row.classes, dict(row.sizes)) == (classes, sizes)


@pytest.mark.parametrize(
    ("name", "start", "layout", "classes"),
    [
        ("imagenet-lt", "ImageNet_LT", "{split}/n{k}/{i}.png", ("n0", "n1", "n2")),
        ("places-lt", "Places_LT", "data_256/{split}/x{k}/outdoor/{i}.png", None),
        ("inat2018", "iNaturalist18", "train_val2018/Aves/{k}/{split}{i}.png", ("0", "1", "2")),
    ],
)
def test_a_published_set_is_what_its_lists_name(tmp_path, small, name, start, layout, classes):
    row = catalogue.find(name)
    assert {file.rpartition("_")[0] for file in row.lists.values()} == {start}
    root = write(tmp_path / "images", tmp_path / "lists", row.lists, layout)
    data = probe.data.load(name, root=root, list_files=tmp_path / "lists")
    assert data.splits == ("train", "test")  # a balanced val would fill the tail: it is checked, not used
    assert data["train"].class_counts.tolist() == [4, 2, 1]
    assert data["test"].class_counts.tolist() == [2, 2, 2]
    lines = (tmp_path / "lists" / row.lists["train"]).read_text().split()
    assert data["train"].ids == lines[::2]
    assert data["train"].labels.tolist() == list(map(int, lines[1::2]))
    assert data["train"][0][0].size == (12, 9)
    assert data.class_names == (classes or tuple(f"data_256/train/x{k}/outdoor" for k in range(3)))


def test_imagenet_lt_is_never_an_exponential_cut(tmp_path, small):
    with pytest.raises(
        UserError, match=r"imagenet-lt is read from a local copy: give data\.root=FOLDER.*ImageNet_LT_train"
    ):
        probe.data.load("imagenet-lt")
    root = write(tmp_path, tmp_path, catalogue.find("imagenet-lt").lists)
    assert probe.data.load("imagenet-lt", root=root).name == "imagenet-lt"  # the lists lie beside the images
    with pytest.raises(UserError, match=r"imagenet-lt has the class sizes of its lists"):
        probe.data.load("imagenet-lt", root=root, imbalance=10)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_list_of_another_size_is_refused_with_both_numbers(tmp_path, small, split):
    row = catalogue.find("imagenet-lt")
    root = write(tmp_path, tmp_path, row.lists)
    file = tmp_path / row.lists[split]
    lines = file.read_text().splitlines()
    dropped = next(line for line in lines if "/n0/" in line)
    file.write_text("\n".join(line for line in lines if line != dropped))
    if split == "val":  # its only image of the class
        message = "val has 2 images, officially 3"
    else:
        message = f"{split} has {len(lines) - 1} images, officially {len(lines)}"
    with pytest.raises(UserError, match=message):
        probe.data.load("imagenet-lt", root=root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train/n0/0.png", "line 1: .* is not a path and the number of a class"),
        ("train/n0/0.png -1", "is not a path and the number of a class"),
        ("train/n0/0.png cat", "is not a path and the number of a class"),
        ("../secret.png 0", "is not a path below the data folder"),
        ("/etc/passwd 0", "is not a path below the data folder"),
        (
            "train/n0/nowhere.png 0\ntrain/n1/0.png 1\ntrain/n2/0.png 2",
            "1 of the 3 images of train.txt are not below",
        ),
        (
            "train\\n0\\0.png 0\ntrain\\n1\\0.png 1\ntrain\\n2\\0.png 2",
            "3 of the 3 images of train.txt .* backslashes, as on Windows: write / instead",
        ),
        ("train/n0/0.png 0\ntrain/n2/0.png 2", "no image of class 1; labels are the numbers 0 to 2"),
        (
            "train/n0/0.png 0\ntrain/n1/0.png 1\ntrain/n2/0.png 2\ntrain/n0/0.png 0",
            "ids occur more than once",
        ),
        ("", "names no images"),
    ],
)
def test_a_wrong_list_is_one_line(tmp_path, line, message):
    write(tmp_path, tmp_path, {name: f"{name}.txt" for name in COUNTS})
    (tmp_path / "train.txt").write_text(line)
    with pytest.raises(UserError, match=message) as caught:
        probe.data.load(tmp_path, list_files=tmp_path)
    assert "\n" not in str(caught.value)


def test_any_folder_of_images_can_have_lists_of_its_own(tmp_path):
    names = {"train": "mine_train.txt", "test": "mine_test.txt"}
    root = write(tmp_path / "photos", tmp_path / "lists", names, "all/{k}-{split}-{i} x.png")
    data = probe.data.load(root, list_files=tmp_path / "lists")
    assert (data.name, data.splits) == ("photos", ("train", "test"))
    assert data.class_names == ("0", "1", "2")  # one folder holds them all
    assert data["train"].ids[0] == "all/2-train-0 x.png"  # a space in a name is no end of it
    assert np.array_equal(data["test"].class_counts, [2, 2, 2])
    tailed = probe.data.load(root, list_files=tmp_path / "lists", imbalance=2)
    assert len(tailed["train"]) < len(data["train"])


def test_what_is_not_read_from_lists_refuses_them(tmp_path):
    with pytest.raises(UserError, match=r"pets is not read from list files"):
        probe.data.load("pets", root=tmp_path, list_files=tmp_path)
    with pytest.raises(UserError, match=r"cannot read the list file .*ImageNet_LT_train.txt"):
        probe.data.load("imagenet-lt", root=tmp_path)
    with pytest.raises(UserError, match=r"no list file of train in .*: give data\.list_files=FOLDER"):
        probe.data.load(tmp_path, list_files=tmp_path)
    with pytest.raises(UserError, match=r"the folder of list files .*absent does not exist"):
        probe.data.load(tmp_path, list_files=tmp_path / "absent")


def test_runs_from_before_keep_their_names():
    assert recipe.build({}).digest == recipe.build({"data": {"name": "digits", "list_files": None}}).digest
