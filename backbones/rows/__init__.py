"""The rows of the catalogue, a table for each way of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backbones.preprocess import Preprocessing
from backbones.sources import Hub
from backbones.spec import TIMM_FILES, Spec


def timm_row(
    name: str,
    architecture: str,
    dim: int,
    licence: str,
    note: str,
    *,
    size: int = 224,
    taps: Sequence[str] = ("pooled",),
    preprocessing: Preprocessing | None = None,
    standardise: bool = False,
    ignored: tuple[str, ...] = (),
    imagenet: Mapping[str, float] | None = None,
) -> Spec:
    """A model of timm with timm's weights; what is not given is as timm has it."""
    return Spec(
        name,
        "timm",
        architecture,
        Hub(f"timm/{architecture}", TIMM_FILES),
        taps=dict.fromkeys(taps, dim),
        size=size,
        licence=licence,
        note=note,
        preprocessing=preprocessing,
        standardise=standardise,
        ignored=ignored,
        imagenet=imagenet or {},
    )
