"""The tuned encoder on disk: its tensors under its own names, for the backbone that it started as."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backbones.state_dict import load_strict, read_state
from probe.system import checksums
from probe.system.atomic import write_atomic
from probe.train.model import experts

if TYPE_CHECKING:
    from backbones.backbone import Backbone

FILE = "model.safetensors"
EXPERTS = "experts"  # their number, in the header of a file that has several


def save(backbone: Backbone, path: Path) -> None:
    """Write the encoder's weights; `restore` puts them back into the same backbone."""
    from safetensors.torch import save as to_bytes

    state = {name: t.detach().cpu().clone().contiguous() for name, t in backbone.encoder.state_dict().items()}
    about = {"backbone": backbone.name}
    if (number := experts.number_of(backbone)) > 1:
        about[EXPERTS] = str(number)
    write_atomic(path, to_bytes(state, metadata=about))


def restore(backbone: Backbone, path: Path) -> Backbone:
    """`backbone`, freshly loaded, with the weights that `save` wrote; every key must fit."""
    checksums.check(path)
    state = read_state(path)
    if (number := _experts(path)) > 1:
        experts.widen(backbone, number)
    load_strict(backbone.encoder, state, path)
    return backbone


def _experts(path: Path) -> int:
    """How many encoders stand side by side in the file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get(EXPERTS, "1")
    return int(said) if said.isdecimal() else 1
