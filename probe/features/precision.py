"""The precision of a forward pass: what a device can do, and the proof that features survive it.

The precision is part of the cache key, so it never follows from the machine by itself: a recipe has float32
unless it says otherwise, and `--fast` writes what this machine's device does best into the recipe.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core import bfloat16
from probe.errors import UserError, nearest

FULL = "float32"
PRECISIONS = (FULL, "bfloat16", "float16")
LEAST_COSINE = 0.999  # between the features of an image in this precision and in float32


def ingredient(precision: str) -> str | None:
    """What the cache key says: nothing for float32, as before there was a choice."""
    return None if precision == FULL else precision


def available(device: torch.device) -> tuple[str, ...]:
    """The precisions that a device computes in with units made for them, the best one first."""
    if device.type == "cpu":
        return ("bfloat16", FULL) if bfloat16.is_native(device) else (FULL,)
    if device.type == "cuda":
        return ("bfloat16", "float16", FULL) if bfloat16.is_native(device) else ("float16", FULL)
    return ("float16", "bfloat16", FULL) if device.type == "mps" else ("bfloat16", "float16", FULL)


def best(device: torch.device) -> str:
    """What `--fast` means on this device."""
    return available(device)[0]


def check(precision: str, device: torch.device) -> None:
    """Refuse a word that is no precision, or one that the device has no units for."""
    if precision not in PRECISIONS:
        raise UserError(f'there is no precision "{precision}"{nearest(precision, PRECISIONS)}')
    if precision not in available(device):
        needs = ": it needs AMX or AVX512-BF16" if (device.type, precision) == ("cpu", "bfloat16") else ""
        raise UserError(
            f"features.precision={precision} is not for this {device.type} device{needs}; "
            f"use {' or '.join(available(device))}"
        )


def prove(name: str, precision: str, low: Tensor, full: Tensor) -> None:
    """Refuse a precision in which a backbone's features (N x D) point elsewhere than in float32.

    A row whose float32 features are zero has no direction; it must be zero in the other precision too.
    """
    low, full = low.double(), full.double()
    cosine = torch.cosine_similarity(low, full).where(full.any(1) | low.any(1), torch.ones(()).double())
    least = float(cosine.nan_to_num(-1).min())
    if least < LEAST_COSINE:
        raise UserError(
            f"the {precision} features of {name} differ from float32's: cosine {least:.4f} on the first "
            f"batch, less than {LEAST_COSINE}; use features.precision=float32"
        )
