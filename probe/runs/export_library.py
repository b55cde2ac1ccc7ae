"""A run as a classifier of timm or transformers: the library's own net with the head as its last layer.

A folder in timm's format is read by both, so it is what either of them gets where the encoder is timm's.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.families.transformers_models import PROCESSOR, VisionEncoder
from backbones.preprocess import Preprocessing
from probe.errors import UserError
from probe.heads.export import as_linear
from probe.runs.model import RunModel

WEIGHTS, CONFIG = "model.safetensors", "config.json"
# What a timm configuration says about weights, besides the numbers of their preprocessing.
KEPT = ("tag", "custom_load", "fixed_input_size", "pool_size", "first_conv", "classifier", "license")


def timm_obstacle(backbone: Backbone) -> str | None:
    """Why timm cannot build this encoder."""
    cfg = getattr(backbone.encoder, "pretrained_cfg", None)
    if not isinstance(cfg, dict) or not hasattr(backbone.encoder, "reset_classifier"):
        return f"{backbone.name} is no architecture of timm"
    if not cfg.get("classifier"):
        return f"timm's {backbone.architecture} has no classifier"
    return None


def transformers_obstacle(backbone: Backbone) -> str | None:
    """Why transformers cannot build this encoder."""
    if timm_obstacle(backbone) is None:
        return None
    if not isinstance(backbone.encoder, VisionEncoder):
        return f"{backbone.name} is no architecture of transformers or timm"
    if backbone.encoder.options:
        return f"{backbone.name} was given another image size than its own"
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING as classifiers

    config: Any = backbone.encoder.model.config
    if type(config) not in classifiers:
        return f"transformers has no image classifier of the type {config.model_type}"
    return None


def write_timm(model: RunModel, folder: Path, about: dict[str, Any]) -> None:
    """`config.json` and `model.safetensors`, as timm saves them."""
    (backbone,) = model.backbones
    net: Any = copy.deepcopy(backbone.encoder)
    net.reset_classifier(len(model.class_names_))
    weight, bias = _linear(model)
    name = net.pretrained_cfg["classifier"]
    layer = net.get_classifier()
    if not isinstance(layer, nn.Linear) or layer.weight.shape != weight.shape:
        raise UserError(
            f"timm's {backbone.architecture} ends in {name}, a {type(layer).__name__} of another shape than "
            "the head; use --to onnx or --to torch"
        )
    _fill(layer, weight, bias)
    _save(net.state_dict(), folder)
    (folder / CONFIG).write_text(json.dumps(timm_config(backbone, list(model.class_names_)), indent=2))


def timm_config(backbone: Backbone, class_names: list[str]) -> dict[str, Any]:
    """What timm needs to build the net again and to prepare its images."""
    net: Any = backbone.encoder
    own, numbers = net.pretrained_cfg, backbone.preprocessing
    fixed = {"img_size": numbers.size} if own.get("fixed_input_size") else {}
    config = {
        "architecture": str(own["architecture"]).partition(".")[0],
        "num_classes": len(class_names),
        "num_features": net.num_features,
        "label_names": class_names,
        "pretrained_cfg": {
            **{key: own[key] for key in KEPT if own.get(key) is not None},
            "num_classes": len(class_names),
            "input_size": [3, numbers.size, numbers.size],
            "interpolation": numbers.interpolation,
            "crop_pct": crop_pct(numbers),
            "crop_mode": "squash" if numbers.squash else "center",
            "mean": list(numbers.mean),
            "std": list(numbers.std),
        },
    }
    return {**config, "model_args": fixed} if fixed else config


def crop_pct(numbers: Preprocessing) -> float:
    """The ratio from which timm computes floor(size / ratio): our `resize` must come out."""
    ratio = numbers.size / numbers.resize
    while math.floor(numbers.size / ratio) < numbers.resize:
        ratio = math.nextafter(ratio, 0)
    return ratio


def timm_logits(folder: Path, pixels: Sequence[Tensor]) -> Tensor:
    """n x K, through timm."""
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(pixels[0])


def write_transformers(model: RunModel, folder: Path, about: dict[str, Any]) -> None:
    """A folder that `AutoModelForImageClassification` and `AutoImageProcessor` read."""
    (backbone,) = model.backbones
    if timm_obstacle(backbone) is None:
        write_timm(model, folder, about)
        return
    from transformers import AutoModelForImageClassification

    encoder = backbone.encoder
    assert isinstance(encoder, VisionEncoder)
    config: Any = copy.deepcopy(encoder.model.config)
    names = list(model.class_names_)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: k for k, name in enumerate(names)}
    net = AutoModelForImageClassification.from_config(config)
    weight, bias = _linear(model)
    layer = _last_layer(net, len(names))
    missing = 0 if layer is None else layer.in_features - weight.shape[1]
    if layer is None or missing < 0:
        raise UserError(f"{type(net).__name__} does not end in a linear layer; use --to onnx or --to torch")
    own = {key: t for key, t in encoder.model.state_dict().items() if key in net.base_model.state_dict()}
    net.base_model.load_state_dict(own)
    _fill(layer, nn.functional.pad(weight, (0, missing)), bias)  # DINOv2's also sees the mean of its patches
    with _no_bars():
        net.eval().save_pretrained(folder)
    shutil.copyfile(Path(backbone.source) / PROCESSOR, folder / PROCESSOR)


def transformers_logits(folder: Path, pixels: Sequence[Tensor]) -> Tensor:
    """n x K, through transformers."""
    from transformers import AutoModelForImageClassification

    with _no_bars():
        net = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True)
    return net.eval()(pixel_values=pixels[0]).logits


@contextmanager
def _no_bars() -> Iterator[None]:
    """transformers draws a bar for every file that it reads or writes."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _last_layer(net: nn.Module, classes: int) -> nn.Linear | None:
    """The linear layer that gives the scores."""
    found = [m for m in net.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    return found[-1] if found else None


def _linear(model: RunModel) -> tuple[Tensor, Tensor]:
    layer = as_linear(model.head_)
    assert layer is not None, "checked before"
    return layer


@torch.no_grad()
def _fill(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    layer.weight.copy_(weight)
    if layer.bias is None:
        layer.bias = nn.Parameter(bias.clone())
    layer.bias.copy_(bias)


def _save(state: dict[str, Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({key: t.detach().cpu().clone().contiguous() for key, t in state.items()}, folder / WEIGHTS)
