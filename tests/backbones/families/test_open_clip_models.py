"""CLIP models through open_clip: two towers, two taps, the right activation, and strict loading."""

from __future__ import annotations

import json
import shutil

import open_clip
import pytest
import torch
from open_clip.transformer import QuickGELU
from safetensors.torch import load_file, save_file

import backbones
from backbones.errors import UserError

SIZES = {"vit": 32, "rn": 64}
NAMES = {"vit": "clip-vit-b32", "rn": "clip-rn50"}
POOLED = {"vit": 32, "rn": 256}


def images(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def theirs(folder) -> torch.nn.Module:
    return open_clip.create_model(f"local-dir:{folder}", require_pretrained=True).eval()


@pytest.fixture(params=["vit", "rn"])
def tower(request) -> str:
    return request.param


@pytest.mark.parametrize("how", ["registered name", "prefix"])
def test_features_and_text_are_open_clips(open_clip_folders, tower, how):
    folder = getattr(open_clip_folders, tower)
    name, weights = (NAMES[tower], folder) if how == "registered name" else (f"open_clip:{folder}", None)
    b = backbones.load(name, weights=weights)
    model, tokenizer = theirs(folder), open_clip.get_tokenizer(f"local-dir:{folder}")
    texts = ["a photo of a pug", "a photo of a beagle"]
    with torch.no_grad():
        assert torch.equal(b(images(SIZES[tower])), model.encode_image(images(SIZES[tower])))
        assert torch.allclose(b.encode_text(texts), model.encode_text(tokenizer(texts)), atol=1e-5)
    assert (b.dim, b.tap) == (24, "projected")
    assert b.logit_scale == pytest.approx(model.logit_scale.exp().item())
    assert b.logit_scale == pytest.approx(1 / 0.07, rel=1e-4)


def test_the_pooled_tap_is_what_the_projection_is_applied_to(open_clip_folders, tower):
    folder, x = getattr(open_clip_folders, tower), images(SIZES[tower])
    b = backbones.load(NAMES[tower], weights=folder, tap="pooled")
    model = theirs(folder)
    with torch.no_grad():
        pooled = b(x)
        projected = pooled @ model.visual.proj if tower == "vit" else model.visual.attnpool.c_proj(pooled)
        assert torch.allclose(projected, model.encode_image(x), atol=1e-5)
    assert pooled.shape == (2, b.dim) == (2, POOLED[tower])
    with pytest.raises(UserError, match='shares no space with text; use the tap "projected"'):
        b.encode_text(["a pug"])


def test_a_tap_that_does_not_exist_is_named(open_clip_folders):
    with pytest.raises(UserError, match='no tap "poled"; did you mean "pooled"'):
        backbones.load("clip-rn50", weights=open_clip_folders.rn, tap="poled")


def test_the_text_tower_is_kept_out_of_training(open_clip_folders, tower):
    b = backbones.load(NAMES[tower], weights=getattr(open_clip_folders, tower)).requires_grad_(True)
    before = b.encode_text(["a pug"])
    b(images(SIZES[tower])).sum().backward()
    unused = [name for name, parameter in b.named_parameters() if parameter.grad is None]
    assert unused == []
    assert torch.equal(b.encode_text(["a pug"]), before)


@pytest.mark.parametrize("declared", [None, True, False])
def test_quick_gelu_is_the_rows_unless_the_folder_says_otherwise(open_clip_folders, tmp_path, declared):
    folder = tmp_path / "clip"
    shutil.copytree(open_clip_folders.vit, folder)
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["quick_gelu"] = declared
    if declared is None:
        del config["model_cfg"]["quick_gelu"]
    (folder / "open_clip_config.json").write_text(json.dumps(config))

    def activation(name: str) -> type:
        return type(backbones.load(name, weights=folder).encoder.transformer.resblocks[0].mlp.gelu)

    assert (activation("clip-vit-b32") is QuickGELU) == (declared is not False)
    assert (activation("open_clip:any") is QuickGELU) == (declared is True)


@pytest.mark.parametrize(
    ("name", "quick"),
    [
        ("open_clip:tiny-clip/openai", True),
        ("open_clip:tiny-clip/laion", False),
        ("open_clip:tiny-clip", False),
    ],
)
def test_weights_from_a_file_take_the_activation_and_numbers_of_their_tag(
    open_clip_folders, tmp_path, monkeypatch, name, quick
):
    """open_clip itself checks neither for a path, and would run OpenAI's weights under plain GELU."""
    from open_clip import factory, pretrained

    model = json.loads((open_clip_folders.vit / "open_clip_config.json").read_text())["model_cfg"]
    monkeypatch.setitem(factory._MODEL_CONFIGS, "tiny-clip", {**model, "quick_gelu": False})
    tags = {"openai": {"quick_gelu": True, "mean": (0.1, 0.2, 0.3)}, "laion": {"mean": (0.5, 0.5, 0.5)}}
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny-clip", tags)
    b = backbones.load(name, weights=open_clip_folders.vit / "open_clip_model.safetensors")
    assert (type(b.encoder.transformer.resblocks[0].mlp.gelu) is QuickGELU) == quick
    tag = name.partition("/")[2]
    assert b.preprocessing.mean == (tags[tag]["mean"] if tag else open_clip.OPENAI_DATASET_MEAN)


def test_a_missing_or_unexpected_key_is_named(open_clip_folders, tmp_path):
    folder = tmp_path / "clip"
    shutil.copytree(open_clip_folders.vit, folder)
    state = load_file(folder / "open_clip_model.safetensors")
    lost = {key: value for key, value in state.items() if key != "visual.ln_post.weight"}
    for content, complaint in (
        (lost, "missing visual.ln_post.weight"),
        ({**state, "visual.extra": torch.zeros(1)}, "unexpected visual.extra"),
    ):
        save_file(content, folder / "open_clip_model.safetensors")
        with pytest.raises(UserError, match=complaint):
            backbones.load("clip-vit-b32", weights=folder)


def test_a_folder_without_weights_is_an_error_and_not_a_random_model(open_clip_folders, tmp_path):
    shutil.copy(open_clip_folders.vit / "open_clip_config.json", tmp_path)
    with pytest.raises(UserError, match="holds no weights"):
        backbones.load("clip-vit-b32", weights=tmp_path)


def test_a_folder_with_the_other_kind_of_tower_is_refused(open_clip_folders):
    with pytest.raises(UserError, match="holds a VisionTransformer, but clip-rn50 is RN50-quickgelu/openai"):
        backbones.load("clip-rn50", weights=open_clip_folders.vit)


def test_image_sizes_follow_what_the_tower_can_do(open_clip_folders):
    b = backbones.load("clip-vit-b32", weights=open_clip_folders.vit, image_size=48)
    assert b(images(48)).shape == (2, 24)
    assert (b.preprocessing.size, b.preprocessing.resize) == (48, 48)
    with pytest.raises(UserError, match="not a multiple of the 8-pixel patches"):
        backbones.load("clip-vit-b32", weights=open_clip_folders.vit, image_size=50)
    with pytest.raises(UserError, match="takes its own image size only"):
        backbones.load("clip-rn50", weights=open_clip_folders.rn, image_size=96)


def test_backbones_without_text_say_so():
    b = backbones.load("cifar-resnet20")
    with pytest.raises(UserError, match="cifar-resnet20 has no text encoder; use a CLIP backbone"):
        b.encode_text(["a pug"])
    with pytest.raises(UserError, match="no text encoder"):
        _ = b.logit_scale
