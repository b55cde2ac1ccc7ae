"""The tuned encoder on disk: its tensors under its own names, for the backbone that it started as."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backbones.state_dict import load_strict, read_state
from probe.system import checksums
from probe.system.atomic import write_atomic

if TYPE_CHECKING:
    from torch import nn

    from backbones.backbone import Backbone

FILE = "model.safetensors"


class HasEncoder(Protocol):
    """As much of a backbone as is saved."""

    @property
    def name(self) -> str: ...

    @property
    def encoder(self) -> nn.Module: ...


def save(backbone: HasEncoder, path: Path) -> None:
    """Write the encoder's weights; `restore` puts them back into the same backbone."""
    from safetensors.torch import save as to_bytes

    state = {name: t.detach().cpu().clone().contiguous() for name, t in backbone.encoder.state_dict().items()}
    write_atomic(path, to_bytes(state, metadata={"backbone": backbone.name}))


def restore(backbone: Backbone, path: Path) -> Backbone:
    """`backbone`, freshly loaded, with the weights that `save` wrote; every key must fit."""
    checksums.check(path)
    load_strict(backbone.encoder, read_state(path), path)
    return backbone
