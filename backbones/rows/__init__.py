"""The rows of the catalogue, a table for each way of training."""

from __future__ import annotations

from backbones.sources import Hub
from backbones.spec import TIMM_FILES, Spec


def timm_row(name: str, architecture: str, dim: int, licence: str, note: str, *, size: int = 224) -> Spec:
    """A model of timm as timm has it: its weights, pooling and preprocessing."""
    return Spec(
        name,
        "timm",
        architecture,
        Hub(f"timm/{architecture}", TIMM_FILES),
        taps={"pooled": dim},
        size=size,
        licence=licence,
        note=note,
    )
