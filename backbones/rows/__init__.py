"""The rows of the catalogue, a table for each way of training."""

from __future__ import annotations

from typing import Any

from backbones.sources import Hub
from backbones.spec import TIMM_FILES, Spec


def timm_row(
    name: str, architecture: str, dim: int, licence: str, note: str, *, size: int = 224, **more: Any
) -> Spec:
    """A model of timm as timm has it: weights, pooling and preprocessing, unless `more` says otherwise."""
    source = Hub(f"timm/{architecture}", TIMM_FILES)
    fields = {"taps": {"pooled": dim}, "size": size, "licence": licence, "note": note}
    return Spec(name, "timm", architecture, source, **(fields | more))
