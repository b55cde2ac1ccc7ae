"""transformers' models from folders that transformers saved."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import backbones
from backbones.errors import UserError
from backbones.families import transformers_models


def images(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_mae_sees_the_whole_image_every_time(hf_folders):
    b = backbones.load(f"hf:{hf_folders.mae}")
    masked = transformers.ViTMAEModel.from_pretrained(hf_folders.mae)
    unmasked = transformers.ViTMAEModel.from_pretrained(hf_folders.mae, mask_ratio=0.0)
    x = images(32)
    with torch.no_grad():
        assert not torch.equal(masked(x).last_hidden_state[:, 0], masked(x).last_hidden_state[:, 0])
        assert torch.equal(b(x), b(x))
        assert torch.allclose(b(x), unmasked(x).last_hidden_state[:, 0], atol=1e-5)
    assert (b.dim, b.tap, b.standardise) == (32, "cls", True)


@pytest.mark.parametrize(
    ("folder", "tap", "attribute"),
    [("dinov2", None, "pooler_output"), ("vit", None, "pooler_output"), ("vit", "cls", "last_hidden_state")],
)
def test_features_are_the_models_own(hf_folders, folder, tap, attribute):
    place = getattr(hf_folders, folder)
    b = backbones.load("hf:any", weights=place, tap=tap)
    model = transformers.AutoModel.from_pretrained(place).eval()
    x = images(b.preprocessing.size)
    with torch.no_grad():
        expected = getattr(model(x), attribute)
        assert torch.equal(b(x), expected if attribute == "pooler_output" else expected[:, 0])
    assert b.dim == 32


def test_a_pooler_that_was_never_trained_is_not_used(hf_folders):
    b = backbones.load(f"hf:{hf_folders.classifier}")
    assert b.tap == "cls"
    assert b.fingerprint == backbones.load(f"hf:{hf_folders.classifier}").fingerprint
    with pytest.raises(UserError, match="no trained pooling"):
        backbones.load(f"hf:{hf_folders.classifier}", tap="pooled")


def test_a_net_without_a_class_token_has_only_its_pooled_feature(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    numbers = {"size": {"shortest_edge": 32}, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(numbers))
    assert backbones.load(f"hf:{tmp_path}")(images(32)).shape == (2, 16)
    with pytest.raises(UserError, match='no class token; use the tap "pooled"'):
        backbones.load(f"hf:{tmp_path}", tap="cls")


def test_a_missing_key_is_named_and_one_too_many_in_the_encoder_too(hf_folders, tmp_path):
    folder = tmp_path / "vit"
    shutil.copytree(hf_folders.vit, folder)
    state = load_file(folder / "model.safetensors")
    victim = next(key for key in state if "layer.1" in key or "layers.1" in key)
    twin = victim.replace(".1.", ".7.", 1)
    for content, complaint in (
        ({key: value for key, value in state.items() if key != victim}, r"missing .*1\."),
        ({**state, twin: state[victim].clone()}, r"unexpected .*7\."),
    ):
        save_file(content, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=complaint):
            backbones.load(f"hf:{folder}")


def test_the_image_processors_numbers_are_used_and_never_guessed(hf_folders, tmp_path):
    numbers = backbones.load(f"hf:{hf_folders.vit}").preprocessing
    assert (numbers.size, numbers.squash, numbers.interpolation) == (32, True, "bilinear")
    assert (numbers.mean, numbers.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    folder = tmp_path / "vit"
    shutil.copytree(hf_folders.vit, folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"has no preprocessor_config.json; save the model's image processor"):
        backbones.load(f"hf:{folder}")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 32, "resample": 2}))
    with pytest.raises(UserError, match=r"does not say how images are resized and normalised: .*image_mean"):
        backbones.load(f"hf:{folder}")


SQUARE, WIDER = {"height": 224, "width": 224}, {"height": 256, "width": 256}


@pytest.mark.parametrize(
    ("config", "size", "resize", "squash"),
    [
        ({"size": 224}, 224, 224, True),
        ({"size": SQUARE}, 224, 224, True),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": SQUARE}, 224, 256, False),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, 224, 256, False),
        ({"size": WIDER, "do_center_crop": True, "crop_size": 224}, 224, 256, True),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 224, 256, False),
    ],
)
def test_every_way_of_writing_a_size_is_understood(config, size, resize, squash):
    numbers = transformers_models._parse(
        {**config, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    )
    assert (numbers.size, numbers.resize, numbers.squash) == (size, resize, squash)


def test_another_image_size_resamples_the_positions(hf_folders):
    b = backbones.load(f"hf:{hf_folders.vit}", image_size=64)
    assert b(images(64)).shape == (2, 32)


def test_a_folder_that_holds_no_model_is_refused(tmp_path, hf_folders):
    with pytest.raises(UserError, match="not a folder that transformers saved"):
        backbones.load(f"hf:{tmp_path}")


def test_a_file_is_answered_with_the_folder_to_give(hf_folders):
    file = hf_folders.vit / "model.safetensors"
    answer = f"{file} is a file, .*config.json.*give the folder that holds both, {hf_folders.vit}$"
    with pytest.raises(UserError, match=answer):
        backbones.load("hf:x", weights=file)
    with pytest.raises(UserError, match=answer):
        backbones.load(f"hf:{file}")


def test_remote_code_is_never_run(hf_folders, tmp_path):
    folder = tmp_path / "vit"
    shutil.copytree(hf_folders.vit, folder)
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError):
        backbones.load(f"hf:{folder}")
    assert not mark.exists()


def test_damaged_safetensors_are_one_line(tmp_path):
    config = {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95" + b"\xff" * 61)  # a pickle by its start
    with pytest.raises(backbones.UserError, match="is damaged"):
        backbones.load(f"hf:{tmp_path}")
