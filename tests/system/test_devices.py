"""One device for a whole run: named once, the same for encoding, solving and training, or refused."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

import backbones
from probe import recipe
from probe.cli import main
from probe.cli.options import recipe_from
from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.runs import inputs
from probe.system import devices, world
from probe.train.parallel import accelerator

CPU = torch.device("cpu")


class Kind:
    """torch's module for a kind of device, with so many of them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many devices of each kind, in a process that is one of `processes`."""

    def made(place=(0, 1, 0), **counts):
        monkeypatch.setattr(torch, "get_device_module", lambda kind: Kind(counts.get(str(kind), 0)))
        monkeypatch.setattr(world, "place", lambda: world.Place(*place))

    return made


@pytest.mark.parametrize(
    ("counts", "name", "encoding", "fitting"),
    [
        ({}, "auto", "cpu", "cpu"),
        ({"cuda": 2}, "auto", "cuda:0", "cuda:0"),
        ({"cuda": 2}, "cpu", "cpu", "cpu"),
        ({"cuda": 2}, "cuda:1", "cuda:1", "cuda:1"),
        ({"mps": 1}, "auto", "mps", "cpu"),
        ({"mps": 1}, "mps", "mps", "mps"),
        ({"xpu": 2}, "auto", "xpu:0", "cpu"),
        ({"xpu": 2}, "xpu:1", "xpu:1", "xpu:1"),
        ({"cuda": 1, "xpu": 1}, "auto", "cuda:0", "cuda:0"),
    ],
)
def test_a_name_gives_the_device_of_encoding_and_that_of_fitting(machine, counts, name, encoding, fitting):
    machine(**counts)
    assert str(devices.chosen(name, devices.FOR_ENCODING)) == encoding
    assert str(devices.chosen(name)) == fitting


def test_each_process_of_a_machine_has_its_own_gpu(machine):
    machine(place=(5, 8, 1), cuda=4)
    assert str(devices.chosen("cuda")) == str(devices.chosen("auto")) == "cuda:1"
    machine(place=(1, 2, 1), cuda=1)
    assert str(devices.chosen("auto")) == "cuda:0"  # two processes may share the only one


@pytest.mark.parametrize(
    ("counts", "place", "name", "said"),
    [
        ({}, (0, 1, 0), "gpu", '"gpu" is none of auto, cpu'),
        ({}, (0, 1, 0), "cuda:-1", "is none of"),
        ({}, (0, 1, 0), "mps", "sees no mps"),
        ({}, (0, 1, 0), "cuda", "sees no cuda"),
        ({"cuda": 2}, (0, 1, 0), "cuda:2", "there is no cuda:2, only 2"),
        ({"cuda": 2}, (1, 2, 1), "cuda:0", "one device for 2 processes; use device=cuda: one for each"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(machine, counts, place, name, said):
    machine(place, **counts)
    with pytest.raises(UserError, match=said) as refused:
        devices.chosen(name, devices.FOR_ENCODING)
    assert "\n" not in str(refused.value)


def test_one_flag_reaches_the_backbone_the_solver_and_the_training(monkeypatch):
    """Every place asks for the recipe's device, by the same function."""
    asked = []

    def chosen(device, auto=devices.FOR_FITTING):
        asked.append((device, auto))
        return CPU

    monkeypatch.setattr(devices, "chosen", chosen)
    made = recipe_from((), {"device": "cuda:3"})
    assert made.device == "cuda:3"
    monkeypatch.setattr(backbones, "load", lambda **settings: settings["device"])
    monkeypatch.setattr(inputs.backbone_identity, "load_and_remember", lambda settings, load, cache: load())
    assert inputs.load_backbone(made, made.backbone.parts[0]) == "cpu"
    found = accelerator.accelerator(TrainConfig(), None, made.device)
    assert found.device == CPU
    assert asked == [("cuda:3", devices.FOR_ENCODING), ("cuda:3", devices.FOR_FITTING)]


@pytest.mark.parametrize("command", [["run"], ["extract"], ["compare", "--methods", "erm"]])
def test_a_device_that_is_not_there_ends_a_command_in_one_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*command, "--data", "digits", "--device", "cuda:99", "--cache", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "device: " in done.output


@pytest.mark.parametrize("name", ["nonsense", "cpu:7", "cuda:-1", "cuda:٣", ""])
def test_what_is_no_device_is_refused_in_the_words_that_people_type(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "--data", "digits", "--device", name])
    assert done.exit_code == 2
    assert done.output.strip() == f'error: device: "{name}" is none of {devices.WRITTEN}'


def test_recipes_of_earlier_builds_keep_their_device_and_their_digest():
    old = {"solver": {"name": "lbfgs", "device": "cpu"}}
    assert recipe.build(old).device == "cpu"
    assert recipe.build(old).digest == recipe.build({}).digest == recipe.build({"device": "cuda"}).digest


def test_fast_is_what_the_named_device_is_fastest_in(monkeypatch):
    from probe.features import precision

    monkeypatch.setattr(
        devices, "chosen", lambda device, auto: torch.device("meta", 0) if device == "mps" else CPU
    )
    monkeypatch.setattr(precision, "best", lambda device: "float32" if device == CPU else "bfloat16")
    assert recipe_from((), {"device": "mps", "fast": True}).features.precision == "bfloat16"
    assert recipe_from(("device=mps",), {"device": "cpu", "fast": True}).features.precision == "bfloat16"
    assert recipe_from((), {"fast": True}).features.precision == "float32"
    said = recipe_from(("features.precision=float16",), {"device": "mps", "fast": True})
    assert said.features.precision == "float16"
