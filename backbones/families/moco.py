"""MoCo's official checkpoints: one encoder of several is a plain network, wrapped for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from backbones.backbone import Parts
from backbones.errors import UserError
from backbones.families import timm_models as timm_family
from backbones.spec import Spec
from backbones.state_dict import read_state, the_weights_file


@dataclass(frozen=True)
class Layout:
    """Starts of keys: of the encoder, of its projection head, and of what else the training script saves."""

    encoder: str
    heads: tuple[str, ...]  # which transfer leaves out
    rest: tuple[str, ...]  # the momentum encoder, its queue of negatives, the predictor


LAYOUTS = (
    Layout("encoder_q.", ("encoder_q.fc.",), ("encoder_k.", "queue")),  # versions 1 and 2
    Layout(
        "base_encoder.", ("base_encoder.fc.", "base_encoder.head."), ("momentum_encoder.", "predictor.")
    ),  # version 3
)


def load(spec: Spec, weights: Path, *, tap: str | None, image_size: int | None) -> Parts:
    """The encoder of a MoCo checkpoint: a file, or the only one in a folder."""
    file = the_weights_file(weights)
    state = own_encoder(read_state(file), file)
    return timm_family.build(
        spec, spec.architecture, state, what=file, architecture=spec.architecture, image_size=image_size
    )


def own_encoder(state: dict[str, Tensor], what: Path) -> dict[str, Tensor]:
    """The encoder's own keys; a key that is neither its nor MoCo's is an error, not a leftover."""
    layout = next((x for x in LAYOUTS if any(key.startswith(x.encoder) for key in state)), None)
    if layout is None:
        starts = " or ".join(f'"{x.encoder}"' for x in LAYOUTS)
        raise UserError(f"{what} is not a MoCo checkpoint: no key starts with {starts}")
    strange = next((key for key in state if not key.startswith((layout.encoder, *layout.rest))), None)
    if strange is not None:
        raise UserError(f"{what} is not a MoCo checkpoint: unexpected {strange}")
    own = [key for key in state if key.startswith(layout.encoder) and not key.startswith(layout.heads)]
    return {key.removeprefix(layout.encoder): state[key] for key in own}
