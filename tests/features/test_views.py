"""Other views of an image than its evaluation crop: what they are, and that each is an entry of its own."""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from backbones.backbone import Backbone, Parts
from backbones.preprocess import Preprocessing
from probe import features
from probe.errors import UserError
from probe.features import inventory
from probe.features.cache_key import key_of
from probe.features.views import AREA, CENTER, SHAPE, View, chosen
from tests.features.test_several_runs import start
from tests.support import feature_world as world

OPTIONS = {"shard_rows": 8, "batch_size": 4, "progress": False}
# of the evaluation crop, computed before there were other views
FORMER_KEY = "377ab1e0c6927c261faf7b9182bf3cd4707657190e0e9a1f2d7d756923907c93"


def take(cache, view, split=None):
    split = world.split(40) if split is None else split
    return features.extract(world.backbone(), split, cache=cache, view=view, **OPTIONS)


def test_the_key_of_the_evaluation_crop_is_what_it_was_before_there_were_views():
    known = {"fingerprint": "0" * 64, "dtype": "float32", "skip_bad_images": False}
    key = key_of(world.backbone(), world.split(12), **known)
    assert key.hash == FORMER_KEY
    assert key.folder == f"tiny-pets-train-{FORMER_KEY[:12]}"
    others = [key_of(world.backbone(), world.split(12), **known, view=v).hash for v in chosen(3)[1:]]
    assert len({key.hash, *others}) == 4


def test_a_recipe_s_choice_always_begins_with_the_evaluation_crop():
    names = [[view.name for view in chosen(choice)] for choice in ("center", "flip", 2)]
    assert names == [["center"], ["center", "flip"], ["center", "crop-1", "crop-2"]]


def test_the_flip_is_the_mirror_image_of_the_evaluation_crop(tmp_path):
    split, backbone = world.split(40), world.backbone()
    pixels = torch.stack([backbone.preprocessing.pixels(split[i][0]) for i in range(40)]).flip(-1)
    with torch.inference_mode():
        expected = backbone(backbone.preprocessing.normalise(pixels))
    torch.testing.assert_close(take(tmp_path, "flip").X.tensor(), expected, rtol=1e-5, atol=1e-6)


def test_a_crop_follows_from_its_number_and_the_image_alone(tmp_path):
    whole, split = take(tmp_path, "crop-1").X.tensor(), world.split(40)
    some = [31, 4, 17]
    torch.testing.assert_close(take(tmp_path, "crop-1", split.subset(some, "x")).X.tensor(), whole[some])
    assert not torch.allclose(take(tmp_path, "crop-2").X.tensor(), whole)
    image, numbers = split[0][0], world.PREPROCESSING
    drawn = [View("crop-1").pixels(numbers, image, digest) for digest in (b"a", b"b", b"a")]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


@dataclass
class Recorder:
    """An image that remembers which box of it was asked for."""

    size: tuple[int, int]
    mode = "RGB"

    def resize(self, size, mode, box):
        self.box = box
        return Image.new("RGB", size)


@pytest.mark.parametrize("size", [(500, 375), (60, 400), (7, 5000), (1, 1)])
def test_crops_are_mild_and_lie_inside_the_image(size):
    image, mirrored = Recorder(size), 0
    for number in range(200):
        View("crop-1").pixels(world.PREPROCESSING, image, str(number).encode())
        left, top, right, bottom = image.box
        across, down = right - left, bottom - top
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
        assert SHAPE[0] - 1e-9 <= across / down <= SHAPE[1] + 1e-9
        if size == (500, 375):  # nearly square itself, so nothing is cut off beyond what is drawn
            assert across * down >= 0.9 * AREA[0] * size[0] * size[1]
    gradient = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 3, (64, 1, 3)))
    for number in range(200):
        pixels = View("crop-2").pixels(world.PREPROCESSING, gradient, str(number).encode())
        mirrored += bool(pixels[0, 0, 0] > pixels[0, 0, -1])
    assert 60 < mirrored < 140  # a fair coin


def test_two_views_are_two_entries_that_ls_names_and_verify_knows(tmp_path):
    for view in ("center", "flip", "crop-2"):
        assert not take(tmp_path, view).cached
        assert take(tmp_path, view).cached
    listed = {entry.view: entry for entry in inventory.entries(tmp_path)}
    assert set(listed) == {"center", "flip", "crop-2"}
    assert listed["flip"].name.startswith("tiny-pets-train-flip-")
    assert inventory.verify(tmp_path) == []
    shard = sorted(listed["crop-2"].path.glob("0*"))[1]
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert [damage.path for damage in inventory.verify(tmp_path)] == [shard]
    (listed["flip"].path / "manifest.json").unlink()  # unfinished, and still called what it is
    assert {entry.view for entry in inventory.entries(tmp_path)} == {"center", "flip", "crop-2"}


def test_a_killed_extraction_of_several_views_resumes_where_it_stopped(tmp_path):
    process = start(tmp_path, DELAY="0.01", VIEWS="center flip crop-1")
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*-flip-*/0*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert {entry.view: entry.state for entry in inventory.entries(tmp_path)} == {
        "center": "complete",
        "flip": "partial",
    }
    (flipped,) = tmp_path.glob("*-flip-*")
    kept = len(list(flipped.glob("0*")))
    for view, left in (("center", 0), ("flip", 100 - 8 * kept), ("crop-1", 100)):
        split = world.split()
        take(tmp_path, view, split)
        assert len(split._images.seen) == left
    assert inventory.verify(tmp_path) == []


class OwnPreprocessing(Preprocessing):
    """Somebody's own way from an image to pixels."""


@pytest.mark.parametrize(("preprocessing", "views"), [(Preprocessing, False), (OwnPreprocessing, True)])
def test_a_backbone_that_forbids_views_says_so_in_one_line(tmp_path, preprocessing, views):
    encoder = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts = Parts(encoder, 3, "pooled", preprocessing(16, 18), "tiny", "seed", views=views)
    backbone = Backbone("strict", parts)
    assert len(features.extract(backbone, world.split(8), cache=tmp_path, **OPTIONS)) == 8
    with pytest.raises(UserError, match="strict takes no view of an image but its own evaluation crop"):
        features.extract(backbone, world.split(8), cache=tmp_path, view="flip", **OPTIONS)


@pytest.mark.parametrize("name", ["", "flop", "crop", "crop-0", "crop--1", "crop-99999", "../flip"])
def test_an_unknown_view_is_one_line(tmp_path, name):
    with pytest.raises(UserError, match=f'there is no view "{name}"'):
        take(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_what_is_asked_for_by_name_is_the_view_itself(tmp_path):
    assert take(tmp_path, CENTER).key == take(tmp_path, "center").key
