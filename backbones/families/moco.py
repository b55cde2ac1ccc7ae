"""MoCo's official checkpoints: the query encoder is a plain ResNet-50, wrapped for distributed training."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from backbones.backbone import Parts
from backbones.errors import UserError
from backbones.families import timm_models as timm_family
from backbones.spec import Spec
from backbones.state_dict import read_state, the_weights_file

QUERY = "module.encoder_q."
HEAD = "module.encoder_q.fc."  # MoCo's projection head, which transfer leaves out
REST = ("module.encoder_k.", "module.queue")  # the momentum encoder and its queue of negatives


def load(spec: Spec, weights: Path, *, tap: str | None, image_size: int | None) -> Parts:
    """The query encoder of a MoCo checkpoint: a file, or the only one in a folder."""
    file = the_weights_file(weights)
    state = query_encoder(read_state(file), file)
    return timm_family.build(
        spec, spec.architecture, state, what=file, architecture=spec.architecture, image_size=image_size
    )


def query_encoder(state: dict[str, Tensor], what: Path) -> dict[str, Tensor]:
    """The encoder's own keys; a key that is neither its nor MoCo's is an error, not a leftover."""
    if not any(key.startswith(QUERY) for key in state):
        raise UserError(f'{what} is not a MoCo checkpoint: no key starts with "{QUERY}"')
    strange = next((key for key in state if not key.startswith((QUERY, *REST))), None)
    if strange is not None:
        raise UserError(f"{what} is not a MoCo checkpoint: unexpected {strange}")
    own = [key for key in state if key.startswith(QUERY) and not key.startswith(HEAD)]
    return {key.removeprefix(QUERY): state[key] for key in own}
