"""A run on the hub: what is uploaded, to a stand-in on this machine, loads and tells how good it is."""

import json

import pytest
import torch
import yaml

import probe
from backbones.torchvision_ops import ensure_torchvision
from probe import recipe
from probe.errors import UserError
from probe.runs.export import ABOUT
from probe.runs.model_card import card
from probe.runs.push import push
from probe.runs.run import run
from tests.support.hub_server import TOKEN, serving

ensure_torchvision()


@pytest.fixture(scope="module")
def probed(colours, cache, tmp_path_factory):
    content = {"backbone": {"name": "effnet-lite0", "image_size": 32}, "data": str(colours), "method": "erm"}
    return run(recipe.build(content), cache=cache, out=tmp_path_factory.mktemp("runs")).folder


@pytest.fixture
def hub(monkeypatch):
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield hub


def test_an_uploaded_run_loads_with_timm(probed, hub, colours, tmp_path):
    import timm

    done = push(probed, "me/colours", private=True)
    files = hub.repositories["me/colours"]
    assert sorted(files) == done["files"] == ["README.md", "config.json", "model.safetensors", ABOUT]
    assert hub.private["me/colours"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    model = probe.load(probed)
    pixels = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model.head_.scores(model.backbones[0](pixels)).float()
        torch.testing.assert_close(net(pixels), expected, atol=1e-4, rtol=1e-4)
    push(probed, "me/colours")  # its own may be replaced


def test_the_card_tells_classes_groups_confusions_and_licence(probed, colours, tmp_path):
    done = push(probed, "me/colours", dry_run=tmp_path / "look")
    card = (tmp_path / "look" / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert (header["license"], header["library_name"]) == ("apache-2.0", "timm")
    result = json.loads((probed / "result.json").read_text())
    hard = result["test"]["groups"]["hard"]
    low, high = (f"{100 * v:.1f}" for v in hard["ci"])
    assert f"| {100 * hard['accuracy']:.1f} | {low} to {high} |" in card
    confusion = result["diagnostics"]["confusions"][0]
    assert f"| {confusion['true']} | {confusion['predicted']} | {confusion['count']} |" in card
    assert "blue, green, grey, red." in card
    assert str(colours.parent) not in card  # where the images lie is nobody's business
    assert sorted(path.name for path in (tmp_path / "look").iterdir()) == done["files"]


def test_names_in_the_card_are_text_and_nothing_else(probed):
    name = "<b>x | $y$ \u202e [z](javascript:1)\n```\n# w"
    result = json.loads((probed / "result.json").read_text().replace('"blue"', json.dumps(name)))
    result["data"]["name"], result["recipe"]["data"]["name"] = name, f"/home/me/{name}"
    about = {"format": "timm", "inputs": [], "seed": 0, "made_by": "me", "class_names": [name]}
    text = card(result, about, "me/x")
    said = [line for line in text.splitlines() if "javascript" in line]
    assert len(said) >= 4  # worst classes, confusions, data, recipe, classes
    assert "\u202e" not in text
    outside = [line for line in said if not line.startswith("  name:")]
    assert not any(mark in line for line in outside for mark in ("<b>", "$", "[z]", "`", "# w"))
    assert text.splitlines().count("```") == 2  # the ends of the blocks of use and recipe
    assert "/home/me" not in text


def test_a_model_of_somebody_else_is_not_overwritten(probed, hub):
    hub.repositories["me/theirs"] = {"pytorch_model.bin": b"theirs"}
    with pytest.raises(UserError, match=r"holds pytorch_model\.bin, which no push wrote"):
        push(probed, "me/theirs")
    assert hub.repositories["me/theirs"] == {"pytorch_model.bin": b"theirs"}


def test_a_refused_upload_is_one_line(probed, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="refuses the upload to me/colours"):
        push(probed, "me/colours")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(UserError, match="nothing can be uploaded: cannot reach"):
        push(probed, "me/colours")
    with pytest.raises(UserError, match="write it as OWNER/NAME"):
        push(probed, "colours")
