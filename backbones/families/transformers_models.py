"""Vision models of transformers, from a hub repository or a folder that `save_pretrained` wrote."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backbones import reading
from backbones.backbone import Parts
from backbones.errors import UserError
from backbones.preprocess import INTERPOLATIONS, Preprocessing
from backbones.sources import hub_file
from backbones.spec import Spec
from backbones.state_dict import file_kind, folder_file, list_keys, strictly
from backbones.torchvision_ops import ensure_torchvision

SHARDS = "model.safetensors.index.json"
FILES = ("model.safetensors", SHARDS, "pytorch_model.bin")
PROCESSOR = "preprocessor_config.json"

# Which class encodes images, where it is not the one that AutoModel picks. A masked autoencoder's own class
# masks three patches of four at random even in evaluation; the plain ViT holds the same encoder.
IMAGE_CLASSES = {
    "vit_mae": "ViTModel",
    "clip": "CLIPVisionModel",
    "siglip": "SiglipVisionModel",
    "siglip2": "Siglip2VisionModel",
}


def load(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """The image encoder of a folder or repository, with the numbers of its own image processor."""
    folder = _folder(spec, weights)
    ensure_torchvision()
    kind = str(_json(folder / "config.json").get("model_type", ""))
    file = folder_file(folder, FILES)
    if file.name != SHARDS:
        file_kind(file)
    model = _model(folder, kind)
    numbers = _numbers(folder).at(image_size)
    own_pooling = _has_pooling(model)
    chosen = tap or ("pooled" if own_pooling else "cls")
    if chosen == "pooled" and not own_pooling:
        raise UserError(f'{spec.name} has no trained pooling; use the tap "cls"')
    if chosen == "cls" and not _has_class_token(model):
        raise UserError(f'{spec.name} has no class token; use the tap "pooled"')
    encoder = VisionEncoder(model, chosen, interpolate=image_size is not None)
    return Parts(
        encoder=encoder,
        dim=_dimension(spec, encoder, numbers.size),
        tap=chosen,
        preprocessing=numbers,
        architecture=type(model).__name__,
        source=str(folder),
        standardise=kind == "vit_mae",
    )


class VisionEncoder(nn.Module):
    """A transformers model that returns one feature vector per image."""

    def __init__(self, model: nn.Module, tap: str, *, interpolate: bool) -> None:
        super().__init__()
        self.model, self.tap = model, tap
        takes_it = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if interpolate and takes_it else {}

    def forward(self, images: Tensor) -> Tensor:
        out = self.model(pixel_values=images, **self.options)
        features = out.pooler_output if self.tap == "pooled" else out.last_hidden_state[:, 0]
        return features.flatten(1)  # convolutional models keep two axes of length one


def _folder(spec: Spec, weights: Path | None) -> Path:
    given = weights or reading.expanded(spec.architecture)
    if given.is_file():
        raise UserError(
            f"{given} is a file, and transformers builds the net from the config.json beside it;"
            f" give the folder that holds both, {given.parent}"
        )
    if weights is None:
        return _from_hub(spec.architecture)
    if not (weights / "config.json").is_file():
        raise UserError(f"{weights} is not a folder that transformers saved: config.json is missing")
    return weights


def _from_hub(repo: str) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo):
        raise UserError(f"there is no folder {repo}, and it is not the name of a repository (owner/name)")
    config = hub_file(repo, ("config.json",))
    hub_file(repo, (PROCESSOR,))
    file = hub_file(repo, FILES)
    if file.name == SHARDS:
        for shard in sorted(set(_json(file)["weight_map"].values())):
            hub_file(repo, (shard,))
    return config.parent


def _model(folder: Path, kind: str) -> nn.Module:
    """The model with every weight of the encoder accounted for; heads and decoders stay behind."""
    import transformers
    from transformers.utils import logging

    name = IMAGE_CLASSES.get(kind, "AutoModel")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        reading.regular_files(folder)  # transformers opens what it likes of them
        _json(folder / "config.json")
        with strictly(folder):
            model, info = getattr(transformers, name).from_pretrained(
                folder, output_loading_info=True, local_files_only=True, trust_remote_code=False
            )
    except OSError as error:
        raise UserError(f"transformers cannot load {folder}: {str(error).splitlines()[0]}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    missing = sorted(info["missing_keys"])
    if missing and all(key.split(".")[0] == "pooler" for key in missing):
        model.pooler, missing = None, []  # never trained: the class token is the feature
    own = {child for child, _ in model.named_children()} | {model.base_model_prefix}
    unexpected = sorted(key for key in info["unexpected_keys"] if key.split(".")[0] in own)
    _refuse(folder, "missing", missing)
    _refuse(folder, "unexpected", unexpected)
    _refuse(folder, "wrong shape of", sorted(str(key) for key in info.get("mismatched_keys", ())))
    takes = inspect.signature(model.forward).parameters
    if "pixel_values" not in takes or "input_ids" in takes:
        raise UserError(f"{folder} holds a {type(model).__name__}, which is not an image encoder")
    return model.eval()


def _refuse(folder: Path, what: str, keys: Iterable[str]) -> None:
    keys = list(keys)
    if keys:
        raise UserError(f"{folder} does not fit its own config.json: {what} {list_keys(keys)}")


def _has_pooling(model: nn.Module) -> bool:
    """Is `pooler_output` computed, from trained weights or from none at all?"""
    return getattr(model, "pooler", True) is not None


def _has_class_token(model: nn.Module) -> bool:
    return any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())


@torch.no_grad()
def _dimension(spec: Spec, encoder: VisionEncoder, size: int) -> int:
    """Ask the model itself: no field of the configuration means this in every family."""
    try:
        features = encoder.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:
        told = f'"{encoder.tap}" feature for {size} x {size} images: {str(error).splitlines()[0]}'
        raise UserError(f"{spec.name} gives no {told}") from error
    return features.shape[1]


def _numbers(folder: Path) -> Preprocessing:
    """The image processor's numbers; none is guessed, because the library's defaults fit no common model."""
    path = folder / PROCESSOR
    if not path.is_file():
        raise UserError(f"{folder} has no {PROCESSOR}; save the model's image processor there too")
    config = _json(path)
    try:
        return _parse(config)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} does not say how images are resized and normalised: {error!r}") from error


def _parse(config: dict[str, Any]) -> Preprocessing:
    size, crop = config["size"], config.get("crop_size")
    exact = isinstance(size, int) or "height" in size  # an old-style number meant both sides
    resize = size if isinstance(size, int) else _side(size)
    final = resize
    if config.get("crop_pct") and resize < 384:  # ConvNeXt's way of writing a centre crop
        resize, exact = int(resize / config["crop_pct"]), False
    elif config.get("do_center_crop"):
        final = crop if isinstance(crop, int) else _side(crop or {})
        exact = exact and not isinstance(size, int)  # with a crop, an old-style number was the short side
    if not config.get("do_resize", True):
        resize = final
    means = config.get("do_normalize", True)
    return Preprocessing(
        size=final,
        resize=resize,
        interpolation={code: name for name, code in INTERPOLATIONS.items()}[int(config["resample"])],
        mean=tuple(config["image_mean"]) if means else (0.0, 0.0, 0.0),
        std=tuple(config["image_std"]) if means else (1.0, 1.0, 1.0),
        squash=exact,
    )


def _side(size: dict[str, int]) -> int:
    if "shortest_edge" in size:
        return size["shortest_edge"]
    if size["height"] != size["width"]:
        raise ValueError(f"only square images are supported, not {size}")
    return size["height"]


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(reading.text(path)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
