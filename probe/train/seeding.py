"""Randomness by position: every random draw of a training is a function of where it happens.

A seed is a hash of the run's seed and counters (epoch, step, process, sample), so a resumed run draws what
the uninterrupted one would have drawn, without any generator's state being saved.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(*position: int | str) -> int:
    """63 bits for a position in the run.

    >>> derive_seed(0, "augment", 3, 1207) == derive_seed(0, "augment", 3, 1207)
    True
    >>> derive_seed(0, "augment", 3, 1207) == derive_seed(0, "augment", 3, 1208)
    False
    """
    return int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest(), "little") >> 1


def set_seed(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` draws from.

    (`torch.manual_seed` also builds a traceback for every kind of device that is absent: milliseconds.)
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed(seed)
