"""A run leaves in the formats of other libraries, and answers there as it did here."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import probe
from backbones.quiet import quietly
from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.runs.export import ABOUT, export
from probe.runs.run import run
from tests.support.exported_models import agrees

EFFNET = {"name": "effnet-lite0", "image_size": 32}
LEFT = {"name": "cifar-resnet20", "image_size": 32}
RIGHT = {"name": "cifar-preact20", "image_size": 24}


@pytest.fixture(scope="module")
def runs(colours, cache, tmp_path_factory):
    """Runs by what is special about them, made when they are first asked for."""
    out, made = tmp_path_factory.mktemp("runs"), {}

    def ask(**content):
        key = json.dumps(content, sort_keys=True)
        if key not in made:
            made[key] = run(recipe.build({"data": str(colours), **content}), cache=cache, out=out).folder
        return made[key]

    return ask


@pytest.fixture(scope="module")
def images(colours):
    return sorted((colours / "test").rglob("*.png"))


@pytest.fixture(scope="module")
def probed(runs):
    return runs(backbone=EFFNET, method="mr2", seeds=2, features={"scaling": "standard"})


@pytest.mark.parametrize("to", ["timm", "transformers"])
def test_a_probe_is_one_model_of_the_library(to, probed, images, tmp_path):
    agrees(probed, to, images, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["label_names"] == ["blue", "green", "grey", "red"]


@pytest.mark.parametrize(("to", "from_bytes"), [("onnx", True), ("torch", False)])
def test_a_graph_holds_mirrored_views_and_two_backbones(to, from_bytes, runs, images, tmp_path):
    folder = runs(backbone=[LEFT, RIGHT], features={"views": "flip"})
    agrees(folder, to, images, tmp_path / "model", from_bytes=from_bytes)


@pytest.mark.parametrize("kind", ["dinov2", "vit"])
def test_a_backbone_of_transformers_stays_one(kind, runs, images, tmp_path):
    import transformers as hf

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = {"dinov2": hf.Dinov2Config, "vit": hf.ViTConfig}[kind](image_size=28, patch_size=14, **shape)
    model = {"dinov2": hf.Dinov2Model, "vit": hf.ViTModel}[kind](config)
    numbers = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "resample": 2, "do_resize": False}
    side = {"height": 28, "width": 28}
    numbers |= {"size": side, "image_processor_type": "ViTImageProcessor", "do_resize": True}
    with quietly():
        model.save_pretrained(tmp_path / "start")
    (tmp_path / "start" / "preprocessor_config.json").write_text(json.dumps(numbers))
    folder = runs(backbone={"name": f"hf:{tmp_path / 'start'}", "tap": "cls"})
    export(folder, "transformers", tmp_path / "model")
    net = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "model").eval()
    pixels = probe.load(folder).backbones[0].preprocessing
    batch = torch.stack([pixels.normalise(pixels.pixels(Image.open(path))) for path in images])
    with torch.inference_mode():
        found = net(pixel_values=batch).logits
    torch.testing.assert_close(found, probe.load(folder)._scores(images).float(), atol=1e-4, rtol=1e-4)
    assert net.config.id2label[3] == "red"
    with pytest.raises(UserError, match="is no architecture of timm; use --to transformers or --to onnx or"):
        export(folder, "timm", tmp_path / "other")


def test_what_is_no_graph_is_refused_in_one_line(runs, tmp_path):
    with pytest.raises(UserError, match="among the training images; no format can"):
        export(runs(backbone=LEFT, solver="knn"), "onnx", tmp_path / "model")
    with pytest.raises(UserError, match="the place of crop-1 follows from each image's file"):
        export(runs(backbone=LEFT, features={"views": 1}), "torch", tmp_path / "model")
    with pytest.raises(UserError, match="--from-bytes is for onnx and torch"):
        export(runs(backbone=LEFT), "timm", tmp_path / "model", from_bytes=True)
    with pytest.raises(UserError, match="cifar-resnet20 is no architecture of timm"):
        export(runs(backbone=LEFT), "timm", tmp_path / "model")


def test_an_export_replaces_its_own_folder_and_no_other(probed, tmp_path):
    folder = tmp_path / "model"
    words = ["export", str(probed), str(folder), "--to", "timm"]
    for _ in range(2):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert "the head of seed 0 (--seed takes 1 too)" in done.output
    assert set(json.loads((folder / ABOUT).read_text())["files"]) == {p.name for p in folder.iterdir()}
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "holds notes.txt, which no export wrote" in done.output
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_loaded_run_takes_images_paths_and_features(probed, images, colours, cache):
    model = probe.load(probed)
    by_path = model.predict_proba(images)
    np.testing.assert_array_equal(by_path, model.predict_proba([Image.open(path) for path in images]))
    np.testing.assert_allclose(by_path[:1], model.predict_proba(str(images[0])), atol=1e-6)
    test = probe.data.load(str(colours))["test"]
    features = probe.features.extract(model.backbones[0], test, cache=cache, progress=False)
    order = np.argsort(features.ids)
    np.testing.assert_allclose(by_path, model.predict_proba(features.X)[order], atol=1e-4)
    assert probe.load(probed, seed=1).seed == 1
