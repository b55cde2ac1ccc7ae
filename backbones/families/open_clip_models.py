"""Image and text encoders of open_clip: OpenAI's CLIP by registered name, everything else by model and tag.

OpenAI trained with QuickGELU, and the same weights under plain GELU load without complaint and give other
features; open_clip warns only for a named tag. Here the tag decides, whatever way the weights arrive.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backbones import reading
from backbones.backbone import Parts
from backbones.catalogue import closest
from backbones.errors import UserError, nearest
from backbones.preprocess import Preprocessing, check_patches
from backbones.sources import Hub, Url, checksum_in_name, hub_file
from backbones.spec import OPEN_CLIP_FILES, Spec
from backbones.state_dict import file_kind, folder_file, strictly, without_initialisation
from backbones.torchvision_ops import ensure_torchvision

CONFIG = "open_clip_config.json"
FOLDER_FILES = (*OPEN_CLIP_FILES, "model.safetensors", "pytorch_model.bin")
TEXT_BATCH = 256


@dataclass(frozen=True)
class ClipPlan:
    """What to build and what to fill it with."""

    model: str  # open_clip's name, or "local-dir:" and a folder
    file: Path
    quick_gelu: bool  # force it; otherwise the model's own configuration decides
    numbers: dict[str, Any] = field(default_factory=dict)  # preprocessing that belongs to the weights


def load(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """Any open_clip model; `weights` is a checkpoint or a folder with `open_clip_config.json`."""
    ensure_torchvision()
    import open_clip

    tap = tap or "projected"
    plan = _plan(spec, weights)
    config = open_clip.get_model_config(plan.model)
    file_kind(plan.file)  # refuses what holds no weights before anything is built
    model = build(plan, image_size)
    _check_tower(spec, plan, model.visual, image_size)
    with strictly(plan.file):
        open_clip.load_checkpoint(model, str(plan.file), strict=True, weights_only=True)
    encoder, dim = tapped(model.visual, tap, config["embed_dim"])
    numbers = _numbers(spec, model.visual.preprocess_cfg)
    del model.visual  # what is left encodes text
    return Parts(
        encoder=encoder,
        dim=dim,
        tap=tap,
        preprocessing=numbers,
        architecture=plan.model.removeprefix("local-dir:"),
        source=str(plan.file),
        text=Text(model, plan.model),
    )


def build(plan: ClipPlan, image_size: int | None) -> Any:
    """The architecture, its memory still to be filled."""
    import open_clip

    text = open_clip.get_model_config(plan.model)["text_cfg"]
    if text.get("hf_model_name"):  # its shape is on the hub too: fail fast where that is out of reach
        hub_file(text["hf_model_name"], ("config.json",))
    with without_initialisation():
        model = open_clip.create_model(
            plan.model,
            load_weights=False,
            pretrained_text=False,
            force_quick_gelu=plan.quick_gelu,
            force_image_size=image_size,
            force_preprocess_cfg=plan.numbers,
        )
    return model.eval()


def tapped(visual: Any, tap: str, embed_dim: int) -> tuple[nn.Module, int]:
    """The image tower ending at `tap`, and the dimension there.

    "projected" is the shared space with text; "pooled" is what the projection is applied to.
    """
    visual.output_tokens = False  # captioning models also return every token
    if tap == "projected":
        return visual, embed_dim
    if getattr(visual, "proj", None) is not None:  # ViT: pooled @ proj
        dim = len(visual.proj)
        visual.proj = None
    elif hasattr(visual, "attnpool"):  # ResNet: applied inside the attention pool, by its weight and bias
        dim = visual.attnpool.c_proj.in_features
        visual.attnpool.c_proj = _identity(dim)
    elif hasattr(visual, "trunk"):  # a timm tower; it projects in its head, or else in the trunk's classifier
        dim = visual.trunk.num_features
        if not any(True for _ in visual.head.parameters()):
            visual.trunk.reset_classifier(0)
        visual.head = nn.Identity()
    else:
        raise UserError(f'{type(visual).__name__} has no projection to stop before; use the tap "projected"')
    return visual, dim


class Text:
    """The text tower of a CLIP model, moved to the images' device when it is first used there."""

    def __init__(self, model: Any, name: str) -> None:
        self._model = model.requires_grad_(False).eval()
        self._name = name
        self._tokenizer: Any = None
        self.logit_scale = float(model.logit_scale.exp())

    def encode(self, texts: list[str], device: torch.device) -> Tensor:
        """M texts -> M x dim, not normalised, in batches."""
        tokens = self._tokens(texts)
        model = self._model.to(device)
        parts = [model.encode_text(batch.to(device)) for batch in tokens.split(TEXT_BATCH)]
        return torch.cat(parts)

    def _tokens(self, texts: list[str]) -> Tensor:
        import open_clip

        if self._tokenizer is None:
            config = open_clip.get_model_config(self._name)["text_cfg"]
            if config.get("hf_tokenizer_name") and not self._name.startswith("local-dir:"):
                hub_file(config["hf_tokenizer_name"], ("tokenizer_config.json",))
            self._tokenizer = open_clip.get_tokenizer(self._name)
        return self._tokenizer(texts)


def _plan(spec: Spec, weights: Path | None) -> ClipPlan:
    if weights is not None and weights.is_dir():
        declared = _of_folder(weights).get("quick_gelu")
        quick = declared if declared is not None else "-quickgelu/" in spec.architecture
        return ClipPlan(f"local-dir:{weights}", folder_file(weights, FOLDER_FILES), bool(quick))
    model, _, tag = spec.architecture.partition("/")
    known = _tag(model, tag, optional=weights is not None)
    file = weights or _source(known).fetch()
    numbers: dict[str, Any] = {
        key: known[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in known
    }
    return ClipPlan(model, file, bool(known.get("quick_gelu")), numbers)


def _tag(model: str, tag: str, *, optional: bool) -> dict[str, Any]:
    """open_clip's entry for the weights; with local ones the tag may be left out."""
    from open_clip import list_models, list_pretrained_tags_by_model
    from open_clip.pretrained import get_pretrained_cfg

    if model not in list_models():
        raise UserError(f'open_clip has no model "{model}"{nearest(model, closest(model, list_models()))}')
    tags = list_pretrained_tags_by_model(model)
    if not tag and optional:
        return {}
    if tag not in tags:
        said = f'no weights "{tag}"' if tag else "several weights and none was named"
        raise UserError(f"open_clip has {said} for {model}{nearest(tag, tags)}")
    return dict(get_pretrained_cfg(model, tag))


def _source(known: dict[str, Any]) -> Hub | Url:
    """open_clip writes a repository as "org/name/" or with the file's name behind it."""
    if known.get("hf_hub"):
        repo, _, file = known["hf_hub"].rpartition("/")
        return Hub(repo, (Path(file).stem + ".safetensors", file) if file else OPEN_CLIP_FILES)
    return Url(known["url"], checksum_in_name(known["url"]))


def _of_folder(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads(reading.text(folder / CONFIG))["model_cfg"]
        config["embed_dim"], config["vision_cfg"], config["text_cfg"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{folder} is not a folder that open_clip saved: no readable {CONFIG} with model_cfg;"
            " give the weights file itself"
        ) from error
    return config


def _check_tower(spec: Spec, plan: ClipPlan, visual: nn.Module, image_size: int | None) -> None:
    """A folder names no architecture, so only the kind of tower can be compared with the row's."""
    residual = hasattr(visual, "attnpool")
    if not spec.open and residual != spec.architecture.startswith("RN"):
        raise UserError(
            f"{plan.file.parent} holds a {type(visual).__name__}, but {spec.name} is {spec.architecture};"
            f" use open_clip:{plan.file.parent}"
        )
    if image_size is None:
        return
    if residual and spec.size != image_size:
        raise UserError(f"{spec.name} pools by position and takes its own image size only, not {image_size}")
    patch = getattr(visual, "patch_size", None)
    check_patches(spec.name, image_size, patch[0] if patch else None)


def _numbers(spec: Spec, config: dict[str, Any]) -> Preprocessing:
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width or config["resize_mode"] not in ("shortest", "squash"):
        raise UserError(
            f"{spec.name} wants {height} x {width} images resized by the {config['resize_mode']} side;"
            " only square ones, by the shortest side or squashed, are supported"
        )
    return Preprocessing(
        size=height,
        resize=height,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        squash=config["resize_mode"] == "squash",
    )


def _identity(dim: int) -> nn.Linear:
    layer = nn.Linear(dim, dim)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
