"""Image encoders of timm, by name or from a file or folder in timm's format.

timm drops to a lenient load, without a word, whenever the number of classes asked for differs from the
checkpoint's. So the classes are counted in the checkpoint, the model is built with that many and loaded
strictly, and only then loses its classifier.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from backbones import reading
from backbones.backbone import Parts
from backbones.catalogue import closest
from backbones.errors import UserError, nearest
from backbones.preprocess import Preprocessing, check_patches
from backbones.sources import LOCAL_COPY, Hub, Scratch, Url, checksum_in_name
from backbones.spec import TIMM_FILES, Spec
from backbones.state_dict import folder_file, read_state, strictly, without_initialisation
from backbones.torchvision_ops import ensure_torchvision

FOLDER_FILES = (*TIMM_FILES, "pytorch_model.pth", "model.pth")


def load(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """Any timm model; `weights` is a state dict or a folder with timm's `config.json`.

    A row whose source is `Scratch` is built with timm's own initialisation, drawn from torch's generator.
    """
    if weights is None and isinstance(spec.source, Scratch):
        return _untrained(spec, _known(spec.architecture), image_size, tap)
    if weights is not None and weights.is_dir():
        architecture = _of_folder(spec, weights)
        name, file = f"local-dir:{weights}", folder_file(weights, FOLDER_FILES)
    else:
        architecture = name = _known(spec.architecture)
        file = weights or _source(architecture).fetch()
    state = read_state(file)
    return build(spec, name, state, what=file, architecture=architecture, image_size=image_size, tap=tap)


def build(
    spec: Spec,
    name: str,
    state: dict[str, Tensor],
    *,
    what: Path,
    architecture: str,
    image_size: int | None,
    tap: str | None = None,
) -> Parts:
    """The timm model `name` filled with `state`, strictly, and without its classifier."""
    ensure_torchvision()
    import timm

    state = {key: value for key, value in state.items() if not key.startswith(spec.ignored)}
    config = _config(name)
    classes = _classes(state, config)
    size, options = _input_size(spec, config, image_size)
    tap, options = tap or next(iter(spec.taps)), {**options, **pooling(spec, tap)}
    overlay = {"state_dict": state, "source": "timm", "num_classes": classes}
    try:
        with strictly(what), without_initialisation():
            model: Any = timm.create_model(
                name, pretrained=True, num_classes=classes, pretrained_cfg_overlay=overlay, **options
            )
    except AssertionError as error:
        raise UserError(f"{spec.name} cannot take {size} x {size} images: {error}") from error
    standardise = spec.standardise or config.get("tag") == "mae"
    return _parts(
        spec, model, size, architecture=architecture, source=str(what), tap=tap, standardise=standardise
    )


def pooling(spec: Spec, tap: str | None) -> dict[str, str]:
    """What tells timm to give the class token, where the tap is not timm's own pooling."""
    return {"global_pool": "token"} if (tap or next(iter(spec.taps))) == "cls" else {}


def _untrained(spec: Spec, architecture: str, image_size: int | None, tap: str | None) -> Parts:
    """The timm model of this name as timm initialises it."""
    import timm

    size, options = _input_size(spec, _config(architecture), image_size)
    tap, options = tap or next(iter(spec.taps)), {**options, **pooling(spec, tap)}
    try:
        model: Any = timm.create_model(architecture, pretrained=False, **options)
    except AssertionError as error:
        raise UserError(f"{spec.name} cannot take {size} x {size} images: {error}") from error
    return _parts(
        spec, model, size, architecture=architecture, source=str(spec.source), tap=tap, standardise=False
    )


def _input_size(
    spec: Spec, config: dict[str, Any], image_size: int | None
) -> tuple[int | None, dict[str, Any]]:
    """The side of the input, None for timm's own, and what tells timm of it where a net's size is fixed."""
    size = image_size or (spec.preprocessing.size if spec.preprocessing else None)
    return size, {"img_size": size} if size and config.get("fixed_input_size") else {}


def _parts(
    spec: Spec, model: Any, size: int | None, *, architecture: str, source: str, tap: str, standardise: bool
) -> Parts:
    """The model without its classifier, and its numbers."""
    model.reset_classifier(0)
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    check_patches(spec.name, size, patch[0] if patch else None)
    return Parts(
        encoder=model,
        dim=getattr(model, "head_hidden_size", None) or model.num_features,
        tap=tap,
        preprocessing=_numbers(spec, model, size),
        architecture=architecture,
        source=source,
        standardise=standardise,
    )


def _known(architecture: str) -> str:
    """The architecture as given, if timm has it; its tag too."""
    ensure_torchvision()
    import timm

    base, _, tag = architecture.partition(".")
    if not timm.is_model(base):
        raise UserError(f'timm has no model "{base}"{nearest(base, closest(base, timm.list_models()))}')
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        raise UserError(f'timm has no weights "{tag}" for {base}{nearest(tag, tags)}')
    return architecture


def _config(name: str) -> dict[str, Any]:
    import timm

    if name.startswith("local-dir:"):
        return json.loads(reading.text(Path(name.removeprefix("local-dir:"), "config.json")))[
            "pretrained_cfg"
        ]
    config = timm.get_pretrained_cfg(name)
    return config.to_dict() if config else {}


def _source(architecture: str) -> Hub | Url:
    """Where timm keeps the weights of a name behind the open prefix."""
    config = _config(architecture)
    if config.get("hf_hub_id"):
        named = config.get("hf_hub_filename")
        return Hub(config["hf_hub_id"], (named,) if named else TIMM_FILES)
    if config.get("url"):
        return Url(config["url"], checksum_in_name(config["url"]))
    raise UserError(f"timm has no pretrained weights for {architecture}; {LOCAL_COPY}")


def _of_folder(spec: Spec, folder: Path) -> str:
    """The architecture that the folder declares; under a registered name it must be the registered one."""
    try:
        config = json.loads(reading.text(folder / "config.json"))
        declared = str(config["architecture"])
        config["pretrained_cfg"]["mean"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{folder} is not a folder that timm saved: config.json with architecture and pretrained_cfg"
            " is missing or unreadable; give the weights file itself"
        ) from error
    wanted = spec.architecture.partition(".")[0]
    if not spec.open and declared != wanted:
        raise UserError(f"{folder} holds {declared}, but {spec.name} is {wanted}; use timm:{folder}")
    return _known(declared)


def _classes(state: dict[str, Tensor], config: dict[str, Any]) -> int:
    """Rows of the checkpoint's classifier; 0 when it has none."""
    classifier = config.get("classifier") or ()
    for key in (classifier,) if isinstance(classifier, str) else classifier:
        if f"{key}.weight" in state:
            return len(state[f"{key}.weight"]) - config.get("label_offset", 0)
    return 0


def _numbers(spec: Spec, model: nn.Module, size: int | None) -> Preprocessing:
    """The row's numbers, or those that timm keeps with the weights."""
    if spec.preprocessing is not None:
        return spec.preprocessing.at(size)
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(model)
    side = size or config["input_size"][-1]
    if config["input_size"][0] != 3 or (not size and config["input_size"][1] != side):
        raise UserError(f"{spec.name} wants {config['input_size']} images; only square RGB is supported")
    if config["crop_mode"] == "border":
        raise UserError(f"{spec.name} pads images to a border, which is not supported; use another model")
    numbers = Preprocessing(
        size=side,
        resize=max(side, int(side / config["crop_pct"])),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
    return replace(numbers, squash=config["crop_mode"] == "squash")
