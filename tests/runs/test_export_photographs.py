"""Photographs give the same logits through every library as through the run, whatever kind of head it has.

Real photographs, wide, high and in full size, go through each library's own way from a file to logits. They
and the images to learn from are cut out of the two that scikit-learn brings.
"""

from pathlib import Path

import pytest
import sklearn
import torch
from PIL import Image

from probe import recipe
from probe.errors import UserError
from probe.runs.export import export
from probe.runs.run import run
from tests.support.exported_models import agrees

PHOTOGRAPHS = Path(sklearn.__file__).parent / "datasets" / "images"
# left, upper, right, lower: what a class is a picture of
PLACES = {
    "roof": ("china.jpg", (150, 20, 500, 180)),
    "wall": ("china.jpg", (170, 160, 620, 330)),
    "petals": ("flower.jpg", (250, 60, 560, 300)),
    "leaves": ("flower.jpg", (0, 180, 250, 427)),
}
SMALL = {"name": "effnet-lite0", "image_size": 64}
SGD = {"name": "sgd", "l2": 1.0}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """Four classes: six training images each, and test images wide, high and of the whole photograph."""
    root = tmp_path_factory.mktemp("photographs") / "photographs"
    for name, (file, (left, upper, right, lower)) in PLACES.items():
        whole = Image.open(PHOTOGRAPHS / file)
        width, height = right - left, lower - upper
        for number in range(6):
            x, y = left + number % 3 * width // 6, upper + number // 3 * height // 4
            _save(whole.crop((x, y, x + width // 2, y + height // 2)), root / "train" / name, number)
        for number, (w, h) in enumerate([(0.8, 0.6), (0.4, 1.0)]):
            part = (left, upper, left + int(w * width), upper + int(h * height))
            _save(whole.crop(part), root / "test" / name, number)
        _save(whole if name in ("roof", "petals") else whole.rotate(180), root / "test" / name, 2)
    return root


def _save(image, folder, number):
    folder.mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{number}.jpg", quality=95)


@pytest.fixture(scope="module")
def images(photographs):
    return sorted((photographs / "test").rglob("*.jpg"))


@pytest.fixture(scope="module")
def made(photographs, cache, tmp_path_factory):
    """The folder of a run on these photographs."""
    out = tmp_path_factory.mktemp("runs")
    return lambda **content: (
        run(recipe.build({"data": str(photographs), **content}), cache=cache, out=out).folder
    )


@pytest.fixture(scope="module")
def probed(made):
    """A linear probe at the backbone's own image size, with the heads of two seeds."""
    return made(backbone="effnet-lite0", method="mr2", seeds=2)


@pytest.mark.parametrize("to", ["timm", "transformers", "onnx", "torch"])
def test_a_linear_probe(to, probed, images, tmp_path):
    agrees(probed, to, images, tmp_path / "model")


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_graph_that_takes_bytes_and_has_another_seed(to, probed, images, tmp_path):
    agrees(probed, to, images, tmp_path / "model", seed=1, from_bytes=True)


@pytest.mark.parametrize("head", ["cosine", "adapter"])
def test_heads_that_are_not_one_layer(head, made, images, tmp_path):
    train = {"head": head, "epochs": 3, "lr": 0.1, "batch_size": 8}
    solver = {"name": "sgd"} if head == "cosine" else SGD
    folder = made(backbone=SMALL, solver=solver, train=train)
    for to in ("onnx", "torch"):
        agrees(folder, to, images, tmp_path / to)
    for to in ("timm", "transformers"):
        with pytest.raises(UserError, match=f"{to} cannot carry this run: a {head} head is not one linear"):
            export(folder, to, tmp_path / to)


def test_a_tuned_network_of_each_seed(made, images, tmp_path):
    train = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "start": "probe"}
    folder = made(backbone=SMALL, method="erm", solver={"l2": 1.0}, finetune=True, seeds=2, train=train)
    first, second = (agrees(folder, "timm", images, tmp_path / f"{seed}", seed=seed) for seed in (0, 1))
    assert not torch.allclose(first, second, atol=1e-3)
    for to in ("transformers", "torch"):
        agrees(folder, to, images, tmp_path / to)
    with pytest.raises(UserError, match="no head of seed 2; it has those of seeds 0, 1"):
        export(folder, "timm", tmp_path / "2", seed=2)


def test_backbones_side_by_side(made, images, tmp_path):
    folder = made(backbone=[SMALL, {"name": "effnet-lite1", "image_size": 96}])
    agrees(folder, "onnx", images, tmp_path / "onnx", from_bytes=True)
    for to in ("timm", "transformers"):
        with pytest.raises(UserError, match=f"{to} cannot carry this run: 2 backbones stand side by side"):
            export(folder, to, tmp_path / to)
