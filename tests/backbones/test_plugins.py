"""What other packages add: backbones and data sets by entry points, without a change here."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import backbones
from backbones import Parts, Preprocessing, Spec, catalogue, plugins
from backbones.errors import UserError
from backbones.sources import Scratch
from probe.data import catalogue as datasets
from tests.support.outside_package import install, python


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return install(tmp_path_factory.mktemp("site"))


def test_a_backbone_of_an_installed_package_is_loaded_by_its_name(package):
    code = (
        "import backbones, torch\n"
        "for name in ('my-net', 'my-path-net'):\n"
        "    b = backbones.load(name)\n"
        "    print(b.name, tuple(b(torch.zeros(2, 3, 16, 16)).shape))\n"
    )
    done = python(package, ["-c", code])
    assert done.stdout.splitlines() == ["my-net (2, 8)", "my-path-net (2, 8)"], done.stderr


def test_lists_show_what_packages_add_and_a_failing_plug_in_is_one_line(package):
    listed = python(package, ["-m", "probe.cli", "backbones", "--json"])
    assert listed.returncode == 0
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["my-net"]["family"] == "my_package:mean_colour"
    assert rows["my-net"]["dim"] == 8
    (line,) = listed.stderr.splitlines()
    assert line.startswith('warning: plug-in "broken-net" (my_package:NO) cannot be loaded')


def test_a_failing_plug_in_is_an_error_of_one_line_for_who_asks_for_it(package):
    words = ["-m", "probe.cli", "run", "--backbone", "broken-net", "--data", "digits"]
    done = python(package, words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith('error: plug-in "broken-net" (my_package:NO) cannot be loaded')


def test_built_in_names_do_not_read_entry_points(monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", None)
    assert catalogue.find("cifar-resnet20").family == "cifar"
    assert catalogue.find("timm:resnet18").architecture == "resnet18"
    assert datasets.find("pets").classes == 37
    assert datasets.find("some/folder") is None
    with pytest.raises(TypeError):
        datasets.find("photos")


def test_a_name_that_two_packages_give_belongs_to_neither(package, tmp_path):
    other = install(tmp_path, "", {"backbones": {"my-net": "my_package:OTHER"}})
    about = other / "my_package-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    about.rename(package / "another-1.0.dist-info")
    try:
        done = python(package, ["-c", "import backbones; backbones.load('my-net')"])
    finally:
        (package / "another-1.0.dist-info").rename(tmp_path / "aside")
    assert "have one name; uninstall a package" in done.stderr


@pytest.fixture
def own_rows(monkeypatch):
    monkeypatch.setattr(catalogue, "_by_name", dict(catalogue._by_name))


def spec(family):
    return Spec("mine", family, "linear", Scratch(), {"pooled": 3}, 8, "mit")


def test_a_family_can_be_a_function(own_rows):
    def family(spec, weights, *, tap, image_size):
        net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
        return Parts(net, 3, "pooled", Preprocessing(size=8, resize=8).at(image_size), "linear", "none")

    backbones.register(spec(family))
    b = backbones.load("mine", image_size=4)
    assert b(torch.zeros(5, 3, 4, 4)).shape == (5, 3)
    assert b.fingerprint == backbones.load("mine", image_size=4).fingerprint  # its weights follow the name


def fails(*args, **options):
    raise ValueError("no such layer")


def returns_a_module(*args, **options):
    return nn.Identity()


@pytest.mark.parametrize(
    ("family", "answer"),
    [
        (fails, "test_plugins:fails.* of mine fails: ValueError: no such layer"),
        (returns_a_module, "must return backbones.Parts, not Identity"),
        ("no_such_package.nets", 'the family "no_such_package.nets" of mine fails: ModuleNotFoundError'),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
    ],
)
def test_what_goes_wrong_in_a_family_from_outside_is_one_line(own_rows, family, answer):
    backbones.register(spec(family))
    with pytest.raises(UserError, match=answer):
        backbones.load("mine")
