"""The zero-shot classifier of a backbone with a text encoder: no image is learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

PROMPTS = 256  # encoded at a time


class TextEncoder(Protocol):
    """What zero-shot needs of a backbone: CLIP's text side."""

    @property
    def logit_scale(self) -> float: ...

    def encode_text(self, texts: list[str]) -> Tensor: ...


def text_classifier(
    backbone: TextEncoder, class_names: Sequence[str], templates: Sequence[str]
) -> tuple[Tensor, float]:
    """K x D class embeddings, each the mean of its unit prompt embeddings, and the scale of the logits."""
    prompts = [template.format(name.replace("_", " ")) for name in class_names for template in templates]
    batches = [prompts[i : i + PROMPTS] for i in range(0, len(prompts), PROMPTS)]
    unit = torch.cat([F.normalize(backbone.encode_text(batch).float().cpu(), dim=1) for batch in batches])
    return unit.view(len(class_names), len(templates), -1).mean(dim=1), float(backbone.logit_scale)
