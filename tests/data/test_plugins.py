"""Data sets from outside: registered in Python, or added by an installed package."""

from __future__ import annotations

import json

import pytest

import probe.data
from probe.data import DatasetSpec, catalogue
from probe.errors import UserError
from tests.support.outside_package import install, python
from tests.support.tiny_datasets import write_folder, write_parquet_folder


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture
def own_rows(monkeypatch):
    monkeypatch.setattr(catalogue, "_by_name", dict(catalogue._by_name))


def row(**more):
    return DatasetSpec("mine", "My images", **{"classes": 2, "sizes": {"train": 6, "test": 6}, **more})


def test_a_data_set_of_an_installed_package_is_loaded_by_its_name(package):
    done = python(package, ["-c", "import probe; print(probe.data.load('my-data'))"])
    assert done.stdout.strip() == "Dataset('my-data', 3 classes, train 42, test 18)", done.stderr
    done = python(package, ["-c", "import probe; print(probe.data.load('my-data-lt', imbalance=7))"])
    assert done.stdout.startswith("Dataset('my-data-lt', 3 classes, train 21"), done.stderr


def test_a_list_shows_it_and_a_failing_plug_in_is_one_line(package):
    listed = python(package, ["-m", "probe.cli", "datasets", "--json"])
    assert listed.returncode == 0
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["my-data"]["source"] == "read by my_package:read"
    assert rows["pets"]["hub"] == "timm/oxford-iiit-pet"
    broken, taken = listed.stderr.splitlines()
    assert broken.startswith('warning: plug-in "broken-data" (my_other_package:DATA) cannot be loaded')
    assert taken == 'warning: plug-in "pets" (my_package:DATA) is ignored: the name is taken'


def test_a_near_miss_of_a_name_from_outside_is_answered_with_it(package):
    done = python(package, ["-m", "probe.cli", "run", "--backbone", "my-net", "--data", "my-dats"])
    assert done.returncode == 2
    assert 'unknown data set "my-dats"; did you mean "my-data"' in done.stderr


def test_what_it_reads_is_checked_against_the_sizes_of_its_row(package):
    done = python(package, ["-c", "import probe; probe.data.load('my-smaller-data')"])
    assert "my-smaller-data: test has 18 images, officially 17" in done.stderr


def test_a_backbone_and_a_data_set_from_outside_run_from_the_command_line(package, tmp_path):
    words = ["-m", "probe.cli", "run", "--backbone", "my-net", "--data", "my-data"]
    done = python(package, [*words, "--cache", tmp_path / "cache", "--out", tmp_path / "run", "seeds=1"])
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "run").glob("*/result.json")
    result = json.loads(file.read_text())
    assert result["data"]["sizes"] == {"train": 42, "test": 18}
    assert result["backbone"]["name"] == "my-net"
    assert result["test"]["top1"] > 0.9


@pytest.mark.parametrize("write", [write_folder, write_parquet_folder])
def test_a_row_can_name_an_image_folder_or_a_folder_of_parquet_files(own_rows, tmp_path, write):
    write(tmp_path)
    sizes = {"train": 6, "test": 6 if write is write_folder else 4}
    probe.data.register(row(folder=tmp_path, sizes=sizes, metric="mean_per_class"))
    data = probe.data.load("mine")
    assert (data.name, data.metric, data.source) == ("mine", "mean_per_class", str(tmp_path))
    assert data.class_names == ("cat", "dog")
    with pytest.raises(UserError, match="the name is taken"):
        probe.data.register(row(folder=tmp_path))


def test_a_reader_may_return_a_data_set(own_rows, tmp_path):
    write_folder(tmp_path)
    probe.data.register(row(read=lambda: probe.data.load(tmp_path)))
    assert probe.data.load("mine")["train"].title == "mine train"


def no_images():
    raise KeyError("images")


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (no_images, r"test_plugins:no_images\) cannot be read: KeyError: 'images'"),
        (lambda: 3, "must return a probe.data.Dataset, or a mapping"),
        (lambda: {"train": [1, 2]}, "must return a probe.data.Dataset, or a mapping"),
        (lambda: {}, "returns the splits none, its row has train, test"),
        ("no_such_package:read", "cannot be read: ModuleNotFoundError"),
    ],
)
def test_what_goes_wrong_in_a_reader_is_one_line(own_rows, read, answer):
    probe.data.register(row(read=read))
    with pytest.raises(UserError, match=answer):
        probe.data.load("mine")


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ({}, "give one of hub, folder, read and lists"),
        ({"hub": "a/b", "folder": "c"}, "give one of hub, folder, read and lists"),
        ({"hub": "a/b", "sizes": {"train": 3}}, "sizes are those of train and test"),
        ({"hub": "a/b", "metric": "top5"}, "the metric is one of accuracy, mean_per_class"),
        ({"hub": "a/b", "templates": ("a photo",)}, "every template needs {} for the class name"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused_when_it_is_made(wrong, answer):
    with pytest.raises(UserError, match=answer):
        row(**wrong)


@pytest.mark.parametrize("name", ["my/data", "../data", "", "my-lt", "a b"])
def test_a_name_must_not_look_like_a_path_or_a_long_tail(name):
    with pytest.raises(UserError, match=r"one word|long-tailed"):
        DatasetSpec(name, "Mine", classes=2, sizes={"train": 1, "test": 1}, hub="a/b")
