"""timm, MoCo, EfficientNet and CIFAR weights: what is loaded is what was saved, or nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_image

import backbones
from backbones.backbone import Backbone
from backbones.catalogue import find
from backbones.errors import UserError
from backbones.families import moco
from backbones.families import timm_models as timm_family
from backbones.state_dict import read_state


def images(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def respelt(folder: Path, target: Path, change) -> Path:
    """A copy of the folder's weights after `change(state)`."""
    state = load_file(folder / "model.safetensors")
    change(state)
    target.mkdir(exist_ok=True)
    save_file(state, target / "model.safetensors")
    shutil.copy(folder / "config.json", target)
    return target


@pytest.mark.parametrize("how", ["folder", "file", "prefix"])
def test_a_timm_model_gives_the_features_timm_gives(timm_folder, how):
    if how == "folder":
        b = backbones.load("timm:test_vit", weights=timm_folder)
    elif how == "file":
        b = backbones.load("timm:test_vit.r160_in1k", weights=timm_folder / "model.safetensors")
    else:
        b = backbones.load(f"timm:{timm_folder}")
    theirs = timm.create_model(f"local-dir:{timm_folder}", pretrained=True, num_classes=0).eval()
    with torch.no_grad():
        assert torch.equal(b(images(160)), theirs(images(160)))
    assert (b.dim, b.tap, b.preprocessing.size) == (64, "pooled", 160)
    assert not b.training
    assert not any(parameter.requires_grad for parameter in b.parameters())


def test_a_file_saved_by_torch_with_the_habits_of_training_scripts_loads_too(timm_folder, tmp_path):
    import argparse

    state = load_file(timm_folder / "model.safetensors")
    wrapped = {f"module.{key}": value for key, value in state.items()}
    torch.save({"model": wrapped, "args": argparse.Namespace(lr=0.1), "epoch": 3}, tmp_path / "run.pth")
    loaded = backbones.load("timm:test_vit", weights=tmp_path / "run.pth")
    assert loaded.fingerprint == backbones.load("timm:test_vit", weights=timm_folder).fingerprint


def test_a_classifier_of_any_size_or_none_makes_no_difference(timm_folder, tmp_path):
    def other_head(state):
        state["head.weight"], state["head.bias"] = torch.ones(7, 64), torch.ones(7)

    def no_head(state):
        del state["head.weight"], state["head.bias"]

    expected = backbones.load("timm:test_vit", weights=timm_folder).fingerprint
    for number, change in enumerate((other_head, no_head)):
        folder = respelt(timm_folder, tmp_path / str(number), change)
        assert backbones.load("timm:test_vit", weights=folder).fingerprint == expected


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_missing_or_unexpected_key_is_named(timm_folder, tmp_path, head, kind):
    def lose(state):
        del state["blocks.3.attn.proj.weight"]
        if not head:
            del state["head.weight"], state["head.bias"]

    def gain(state):
        state["blocks.99.secret"] = torch.zeros(2)

    for change, complaint in (
        (lose, "missing blocks.3.attn.proj.weight"),
        (gain, "unexpected blocks.99.secret"),
    ):
        folder = respelt(timm_folder, tmp_path, change)
        with pytest.raises(UserError, match=complaint):
            backbones.load(
                "timm:test_vit", weights=folder if kind == "folder" else folder / "model.safetensors"
            )


def test_a_tensor_of_another_shape_is_named(timm_folder, tmp_path):
    def widen(state):
        state["norm.weight"] = torch.zeros(65)

    with pytest.raises(UserError, match=r"norm.weight has shape 65, not 64"):
        backbones.load("timm:test_vit", weights=respelt(timm_folder, tmp_path, widen))


def test_a_folder_of_another_architecture_is_refused_under_a_registered_name(timm_folder):
    with pytest.raises(UserError, match="holds test_vit, but resnet50 is resnet50; use timm:"):
        backbones.load("resnet50", weights=timm_folder)


def test_a_folder_without_a_configuration_or_weights_says_which(timm_folder, tmp_path):
    with pytest.raises(UserError, match=r"not a folder that timm saved: config.json"):
        backbones.load("timm:test_vit", weights=tmp_path)
    shutil.copy(timm_folder / "config.json", tmp_path)
    with pytest.raises(UserError, match=r"holds no weights: none of model.safetensors"):
        backbones.load("timm:test_vit", weights=tmp_path)


def test_vision_transformers_take_other_image_sizes_that_their_patches_divide(timm_folder):
    b = backbones.load("timm:test_vit", weights=timm_folder, image_size=96)
    assert b.preprocessing.size == 96
    assert b(images(96)).shape == (2, 64)
    with pytest.raises(UserError, match="image_size=100 is not a multiple of the 16-pixel patches"):
        backbones.load("timm:test_vit", weights=timm_folder, image_size=100)


def test_mae_is_deterministic_wants_standardising_and_ignores_only_its_decoder(tmp_path, monkeypatch):
    with torch.device("meta"):
        shapes = timm.create_model("vit_base_patch16_224.mae", num_classes=0).state_dict()
    file = tmp_path / "mae.pth"
    file.touch()
    state = {key: torch.full(value.shape, 0.01) for key, value in shapes.items()}
    extra = {"mask_token": torch.zeros(1, 1, 512), "decoder_blocks.0.norm1.weight": torch.zeros(512)}
    monkeypatch.setattr(timm_family, "read_state", lambda path: {**state, **extra})  # 340 MB stay in memory
    b = backbones.load("mae-vit-b16", weights=file)
    with torch.no_grad():
        x = images(224)[:1]
        assert torch.equal(b(x), b.encoder.forward_features(x)[:, 0])  # the class token, twice the same
    assert (b.dim, b.standardise, b.preprocessing.resize) == (768, True, 256)
    extra["stranger.weight"] = torch.zeros(1)
    with pytest.raises(UserError, match=r"unexpected stranger.weight"):
        backbones.load("mae-vit-b16", weights=file)


def test_dinov2_weights_of_518_pixels_serve_at_224(tmp_path):
    torch.manual_seed(0)
    native = timm.create_model("vit_small_patch14_dinov2.lvd142m", num_classes=0)
    assert native.pos_embed.shape[1] == 37 * 37 + 1
    save_file(native.state_dict(), tmp_path / "dino.safetensors")
    b = backbones.load("dinov2-vit-s14", weights=tmp_path / "dino.safetensors")
    assert b.encoder.pos_embed.shape[1] == 16 * 16 + 1
    assert (b.dim, b.preprocessing.size, b.preprocessing.resize) == (384, 224, 256)


def test_moco_loads_its_query_encoder_and_nothing_else(moco_checkpoint, tmp_path):
    b = backbones.load("mocov2-rn50", weights=moco_checkpoint.path)
    with torch.no_grad():
        x = images(64)
        assert torch.allclose(b(x), moco_checkpoint.encoder(x), atol=1e-5)
    assert (b.dim, b.preprocessing.resize, b.preprocessing.interpolation) == (2048, 256, "bilinear")


def test_vicreg_is_a_resnet_50_that_was_saved_without_its_classifier(moco_checkpoint, tmp_path):
    state = moco_checkpoint.encoder.state_dict()
    assert not any(key.startswith("fc.") for key in state)
    torch.save(state, tmp_path / "resnet50.pth")
    b = backbones.load("vicreg-rn50", weights=tmp_path / "resnet50.pth")
    with torch.no_grad():
        x = images(64)
        assert torch.allclose(b(x), moco_checkpoint.encoder(x), atol=1e-5)
    assert (b.dim, b.preprocessing.resize, b.preprocessing.interpolation) == (2048, 256, "bilinear")
    state.pop("layer3.2.bn1.weight")
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(UserError, match=r"missing layer3\.2\.bn1\.weight"):
        backbones.load("vicreg-rn50", weights=tmp_path / "odd.pth")


@pytest.mark.parametrize(
    ("name", "prefix", "rest"),
    [
        ("barlowtwins-rn50", "", {}),
        (
            "swav-rn50",
            "module.",
            {
                "module.projection_head.0.weight": torch.zeros(4, 8),
                "module.prototypes.weight": torch.zeros(2, 4),
            },
        ),
        (
            "mocov3-rn50",
            "module.base_encoder.",
            {
                "module.base_encoder.fc.0.weight": torch.zeros(8, 2048),
                "module.momentum_encoder.conv1.weight": torch.zeros(64, 3, 7, 7),
                "module.predictor.0.weight": torch.zeros(4, 8),
            },
        ),
    ],
)
def test_other_authors_files_are_the_same_net_among_other_keys(moco_checkpoint, tmp_path, name, prefix, rest):
    own = {f"{prefix}{key}": value for key, value in moco_checkpoint.encoder.state_dict().items()}
    content = {"epoch": 1_000, "state_dict": {**own, **rest}} if "base" in prefix else {**own, **rest}
    torch.save(content, tmp_path / "weights.pth.tar")
    b = backbones.load(name, weights=tmp_path / "weights.pth.tar")
    with torch.no_grad():
        x = images(64)
        assert torch.allclose(b(x), moco_checkpoint.encoder(x), atol=1e-5)
    assert (b.dim, b.preprocessing.resize, b.preprocessing.interpolation) == (2048, 256, "bilinear")
    (content.get("state_dict", content))[f"{prefix}odd.weight"] = torch.zeros(1)
    torch.save(content, tmp_path / "odd.pth.tar")
    with pytest.raises(UserError, match=r"unexpected odd\.weight"):
        backbones.load(name, weights=tmp_path / "odd.pth.tar")


def test_mocov3s_transformer_gives_its_class_token(tmp_path, monkeypatch):
    with torch.device("meta"):
        shapes = timm.create_model("vit_base_patch16_224", num_classes=0).state_dict()
    (tmp_path / "vit.pth.tar").touch()
    state = {f"base_encoder.{key}": torch.full(value.shape, 0.01) for key, value in shapes.items()}
    extra = {"base_encoder.head.0.weight": torch.zeros(4, 768), "predictor.0.weight": torch.zeros(4, 4)}
    monkeypatch.setattr(moco, "read_state", lambda path: {**state, **extra})  # 340 MB stay in memory
    b = backbones.load("mocov3-vit-b16", weights=tmp_path / "vit.pth.tar")
    with torch.no_grad():
        x = images(224)[:1]
        assert torch.equal(b(x), b.encoder.forward_features(x)[:, 0])
    assert b.dim == 768


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: state.pop("module.encoder_q.layer3.2.bn1.weight"), "missing layer3.2.bn1.weight"),
        (lambda state: state.update({"module.encoder_q.odd": torch.zeros(1)}), "unexpected odd"),
        (
            lambda state: state.update({"module.third_encoder.w": torch.zeros(1)}),
            "unexpected third_encoder.w",
        ),
    ],
)
def test_moco_names_a_key_that_does_not_belong(moco_checkpoint, tmp_path, change, complaint):
    content = torch.load(moco_checkpoint.path, weights_only=True, mmap=True)
    change(content["state_dict"])
    torch.save(content, tmp_path / "moco.pth.tar")
    with pytest.raises(UserError, match=complaint):
        backbones.load("mocov2-rn50", weights=tmp_path / "moco.pth.tar")


def test_a_checkpoint_that_is_not_mocos_is_refused(timm_folder):
    with pytest.raises(
        UserError, match=r'not a MoCo checkpoint: no key starts with "encoder_q." or "base_encoder."'
    ):
        backbones.load("mocov2-rn50", weights=timm_folder / "model.safetensors")


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    return backbones.load("effnet-lite0")


def package_state() -> dict[str, torch.Tensor]:
    return read_state(find("effnet-lite0").source.fetch())


@pytest.mark.parametrize(("photo", "label"), [("china.jpg", 698), ("flower.jpg", 985)])  # palace, daisy
def test_the_embedded_backbone_knows_what_is_on_a_photo(lite0, photo, label):
    """The package's own classifier on our features: a wrong layer or wrong pixels would give nonsense."""
    weight, bias = list(package_state().values())[-2:]
    x = lite0.transform(Image.fromarray(load_sample_image(photo)))[None]
    with torch.no_grad():
        features = lite0(x)
        assert torch.equal(features, lite0(x))
    assert features.shape == (1, lite0.dim) == (1, 1280)
    assert (features @ weight.T + bias).argmax().item() == label


def test_the_package_layout_is_matched_strictly(lite0, tmp_path):
    state = package_state()
    names = list(state)
    swapped = {name: state[name] for name in [names[1], names[0], *names[2:]]}
    for content, complaint in (
        (swapped, "stands where"),
        (dict(list(state.items())[:-1]), "missing classifier.bias"),
    ):
        torch.save(content, tmp_path / "lite0.pth")
        with pytest.raises(UserError, match=complaint):
            backbones.load("effnet-lite0", weights=tmp_path / "lite0.pth")


def test_effnet_also_reads_timms_own_layout(lite0, tmp_path):
    save_file(lite0.encoder.state_dict(), tmp_path / "lite0.safetensors")
    assert (
        backbones.load("effnet-lite0", weights=tmp_path / "lite0.safetensors").fingerprint
        == lite0.fingerprint
    )


def test_cifar_nets_read_back_what_was_trained(tmp_path):
    b = backbones.load("cifar-preact20")
    save_file(b.encoder.state_dict(), tmp_path / "net.safetensors")
    again = backbones.load("cifar-preact20", weights=tmp_path / "net.safetensors")
    assert again.fingerprint == b.fingerprint
    with pytest.raises(UserError, match=r"missing .*unexpected "):
        backbones.load("cifar-resnet20", weights=tmp_path / "net.safetensors")


def test_a_folder_serves_where_one_file_in_it_holds_the_weights(moco_checkpoint, lite0, tmp_path):
    save_file(backbones.load("cifar-resnet20", seed=5).encoder.state_dict(), tmp_path / "net.safetensors")
    (tmp_path / "notes.txt").write_text("how it was trained")
    (tmp_path / "lite0").mkdir()
    save_file(lite0.encoder.state_dict(), tmp_path / "lite0" / "net.safetensors")
    for name, file in (
        ("cifar-resnet20", tmp_path / "net.safetensors"),
        ("mocov2-rn50", moco_checkpoint.path),
        ("effnet-lite0", tmp_path / "lite0" / "net.safetensors"),
    ):
        by_folder = backbones.load(name, weights=file.parent)
        assert by_folder.source == str(file)
        assert by_folder.fingerprint == backbones.load(name, weights=file).fingerprint


@pytest.mark.parametrize("name", ["cifar-resnet20", "mocov2-rn50", "effnet-lite0"])
def test_a_folder_with_no_weights_or_several_files_says_so(tmp_path, name):
    (tmp_path / "notes.txt").write_text("how it was trained")
    with pytest.raises(UserError, match=f"{tmp_path} holds no file of weights .*give the file itself"):
        backbones.load(name, weights=tmp_path)
    for file in ("last.pth", "best.safetensors"):
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=r"several files of weights: best.safetensors, last.pth; give one"):
        backbones.load(name, weights=tmp_path)


def test_every_family_works_in_channels_last(timm_folder, lite0):
    for b, size in ((backbones.load("timm:test_vit", weights=timm_folder), 160), (lite0, 224)):
        with torch.no_grad():
            plain = b(images(size))
            b.to(memory_format=torch.channels_last)
            assert torch.allclose(b(images(size).to(memory_format=torch.channels_last)), plain, atol=1e-4)
            assert b.digest() == b.fingerprint


def test_the_config_of_a_folder_decides_its_preprocessing(timm_folder, tmp_path):
    folder = respelt(timm_folder, tmp_path, lambda state: None)
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.5, "interpolation": "bilinear"}
    (folder / "config.json").write_text(json.dumps(config))
    numbers = backbones.load(f"timm:{folder}").preprocessing
    assert (numbers.mean, numbers.resize, numbers.interpolation) == ((0.1, 0.2, 0.3), 320, "bilinear")
