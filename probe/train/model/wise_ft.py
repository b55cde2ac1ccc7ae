"""WiSE-FT: weights between the model before and after fine-tuning (Wortsman et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor


def between(start: dict[str, Tensor], end: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) start + alpha end, exactly the one or the other at 0 and 1; counters are the end's."""
    if alpha in (0, 1):
        return end if alpha else start
    return {
        name: torch.lerp(start[name], value, alpha) if value.is_floating_point() else value
        for name, value in end.items()
    }
