"""A run on cached features knows its backbone without loading it, and notices when it is another."""

import os
import shutil
import subprocess
import sys
import time

import pytest

import backbones
from probe import recipe
from probe.errors import UserError
from probe.features import backbone_identity
from probe.runs.inputs import gather
from probe.system import digest_index


@pytest.fixture
def weights(tmp_path):
    copy = tmp_path / "weights.pth"
    shutil.copy(backbones.catalogue.find("effnet-lite0").source.fetch(), copy)
    os.utime(copy, (1e9, 1e9))
    return copy


@pytest.fixture(autouse=True)
def old_files(monkeypatch):
    """A file just written is not trusted yet; tests do not wait for it to grow old."""
    monkeypatch.setattr(backbone_identity, "RACY", 0)


def asked(weights, colours, **more):
    backbone = {"name": "effnet-lite0", "weights": str(weights), "image_size": 32}
    return recipe.build({"backbone": backbone, "data": str(colours), **more})


def no_loading(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the backbone was loaded")

    monkeypatch.setattr(backbones, "load", refuse)


def test_the_second_run_does_not_load_the_backbone(weights, colours, cache, monkeypatch):
    first = gather(asked(weights, colours), cache=cache)
    no_loading(monkeypatch)
    second = gather(asked(weights, colours), cache=cache)
    assert isinstance(second.backbone, backbone_identity.BackboneIdentity)
    assert second.features["train"].key == first.features["train"].key
    for name in (*backbone_identity.NUMBERS, "preprocessing"):
        assert getattr(second.backbone, name) == getattr(first.backbone, name)
    assert second.backbone.digest() == first.backbone.digest()


def test_a_known_backbone_whose_features_are_gone_extracts_them_again(weights, colours, cache, tmp_path):
    words = ["--backbone", "effnet-lite0", "--weights", str(weights), "--image-size", "32"]
    command = [sys.executable, "-m", "probe.cli", "extract", *words, "--data", str(colours)]
    os.utime(weights, (1e9, 1e9))
    time.sleep(max(0.0, digest_index.RACY / 1e9 - (time.time() - weights.stat().st_ctime)))
    for _ in range(2):  # in processes of their own: what is imported when matters
        done = subprocess.run([*command, "--cache", tmp_path / "c"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "images/s" in done.stdout
        assert len(list((tmp_path / "c" / backbone_identity.FOLDER).iterdir())) == 1
        for entry in (tmp_path / "c").glob("effnet-lite0-*"):
            shutil.rmtree(entry)


def test_a_misspelt_attribute_is_an_error_and_loads_nothing(weights, colours, cache, monkeypatch):
    gather(asked(weights, colours), cache=cache)
    b = gather(asked(weights, colours), cache=cache).backbone
    no_loading(monkeypatch)
    for name in ("fingerprnt", "encoder", "forward"):
        with pytest.raises(AttributeError):
            getattr(b, name)


def test_the_backbone_itself_is_loaded_when_it_is_asked_for(weights, colours, cache):
    gather(asked(weights, colours), cache=cache)
    b = gather(asked(weights, colours), cache=cache).backbone
    assert sum(p.numel() for p in b.load().parameters()) > 1_000_000
    assert b.digest() == b.fingerprint


@pytest.mark.parametrize("change", ["weights", "size", "library", "damage"])
def test_anything_that_could_change_the_backbone_makes_it_load(weights, colours, cache, monkeypatch, change):
    gather(asked(weights, colours), cache=cache)
    settings = asked(weights, colours).backbone.parts[0].model_dump()
    assert backbone_identity.recall(settings, load=lambda: None, cache=cache) is not None
    if change == "weights":
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        os.utime(weights, (1e9, 1e9))  # the same size and modification time: the change time tells
    elif change == "size":
        settings["image_size"] = 64
    elif change == "library":
        monkeypatch.setattr(backbone_identity.metadata, "version", lambda name: "0")
    else:
        for file in (cache / backbone_identity.FOLDER).iterdir():
            file.write_text(file.read_text().replace("1280", "1281"))
    assert backbone_identity.recall(settings, load=lambda: None, cache=cache) is None


def test_weights_that_change_during_a_run_are_noticed(weights, colours, cache):
    gather(asked(weights, colours), cache=cache)
    settings = asked(weights, colours).backbone.parts[0].model_dump()
    other = backbones.load("effnet-lite0", image_size=64)
    b = backbone_identity.recall(settings, load=lambda: other, cache=cache)
    with pytest.raises(UserError, match="changed during the run"):
        b.load()


def test_young_files_and_nets_without_weights_are_not_trusted(weights, cache, monkeypatch):
    monkeypatch.setattr(backbone_identity, "RACY", digest_index.RACY)
    assert backbone_identity._place({"name": "effnet-lite0", "weights": str(weights)}, cache) is None
    assert backbone_identity._place({"name": "cifar-resnet20", "weights": None}, cache) is None


def test_a_cache_that_takes_no_notes_is_no_obstacle(weights, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    settings = {"name": "effnet-lite0", "weights": str(weights), "tap": None, "image_size": 32}
    backbone_identity.load_and_remember(settings, lambda: backbones.load(**settings), occupied)
    assert backbone_identity.recall(settings, load=lambda: None, cache=occupied) is None


def test_weights_replaced_while_they_are_read_are_not_remembered(weights, cache):
    settings = {"name": "effnet-lite0", "weights": str(weights), "tap": None, "image_size": 48}

    def load_and_lose():
        loaded = backbones.load(**settings)
        weights.write_bytes(b"another checkpoint")
        return loaded

    backbone_identity.load_and_remember(settings, load_and_lose, cache)
    assert backbone_identity.recall(settings, load=lambda: None, cache=cache) is None
