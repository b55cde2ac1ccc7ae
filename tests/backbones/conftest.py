"""Tiny real models, each saved once by its own library in that library's own format."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.quiet import quietly
from backbones.torchvision_ops import ensure_torchvision

ensure_torchvision()  # before any test module imports a library that wants torchvision

TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
TOWERS = {
    "vit": {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16},
    "rn": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
}
NUMBERS = {"mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A landscape picture with smooth and sharp parts, at a size that divides by nothing."""
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (13, 17, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((419, 311), Image.Resampling.BICUBIC)).astype(int)
    noisy = np.clip(smooth + generator.integers(-40, 41, smooth.shape), 0, 255)
    return Image.fromarray(noisy.astype(np.uint8))


@pytest.fixture(scope="session")
def timm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import timm
    from timm.models._hub import save_for_hf

    folder = tmp_path_factory.mktemp("timm-vit")
    torch.manual_seed(0)
    save_for_hf(timm.create_model("test_vit"), folder, safe_serialization=True)
    return folder


def save_open_clip(folder: Path, tower: str, *, quick_gelu: bool | None = True) -> Path:
    import open_clip
    from safetensors.torch import save_file

    model = {"embed_dim": 24, "vision_cfg": TOWERS[tower], "text_cfg": TEXT}
    if quick_gelu is not None:
        model["quick_gelu"] = quick_gelu
    config = {"model_cfg": model, "preprocess_cfg": NUMBERS}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    with quietly():
        state = open_clip.create_model(f"local-dir:{folder}").state_dict()
    save_file(
        {key: value.contiguous() for key, value in state.items()}, folder / "open_clip_model.safetensors"
    )
    return folder


@pytest.fixture(scope="session")
def open_clip_folders(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return SimpleNamespace(
        **{tower: save_open_clip(tmp_path_factory.mktemp(f"open-clip-{tower}"), tower) for tower in TOWERS}
    )


@pytest.fixture(scope="session")
def moco_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A ResNet-50 in the layout of MoCo's own training script, momentum encoder and queue included."""
    import torchvision

    torch.manual_seed(0)
    encoder = torchvision.models.resnet50(weights=None).eval()
    state = {
        f"module.encoder_q.{key}": value for key, value in encoder.state_dict().items() if "fc." not in key
    }
    state |= {
        "module.encoder_q.fc.0.weight": torch.zeros(8, 2048),
        "module.encoder_q.fc.0.bias": torch.zeros(8),
    }
    state |= {"module.encoder_k.conv1.weight": torch.zeros(64, 3, 7, 7)}
    state |= {"module.queue": torch.zeros(8, 4), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    path = tmp_path_factory.mktemp("moco") / "moco.pth.tar"
    torch.save({"epoch": 800, "arch": "resnet50", "state_dict": state}, path)
    encoder.fc = torch.nn.Identity()
    return SimpleNamespace(path=path, encoder=encoder)


@pytest.fixture(scope="session")
def hf_folders(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A masked autoencoder, a DINOv2 and two plain ViTs, with and without a trained pooler."""
    import transformers as hf

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    decoder = {f"decoder_{key}": value // 2 for key, value in shape.items()} | {
        "decoder_num_attention_heads": 2
    }
    models = {
        "mae": hf.ViTMAEForPreTraining(hf.ViTMAEConfig(image_size=32, patch_size=8, **shape, **decoder)),
        "dinov2": hf.Dinov2Model(hf.Dinov2Config(image_size=28, patch_size=14, **shape)),
        "vit": hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **shape)),
        "classifier": hf.ViTForImageClassification(hf.ViTConfig(image_size=32, patch_size=8, **shape)),
    }
    folders = {}
    with quietly():
        for name, model in models.items():
            folders[name] = tmp_path_factory.mktemp(f"hf-{name}")
            model.save_pretrained(folders[name])
            size = model.config.image_size
            (folders[name] / "preprocessor_config.json").write_text(
                json.dumps(
                    {
                        "size": {"height": size, "width": size},
                        "resample": 2,
                        "image_mean": [0.5, 0.4, 0.3],
                        "image_std": [0.2, 0.3, 0.4],
                    }
                )
            )
    return SimpleNamespace(**folders)
