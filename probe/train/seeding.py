"""Randomness by position: every random draw of a training is a function of where it happens.

A seed is a hash of the run's seed and counters (epoch, step, process, sample), so a resumed run draws what
the uninterrupted one would have drawn, without any generator's state being saved.
"""

from __future__ import annotations

import hashlib
from typing import Any


def seed(*position: int | str) -> int:
    """63 bits for a place in the run.

    >>> seed(0, "augment", 3, 1207) == seed(0, "augment", 3, 1207) != seed(0, "augment", 3, 1208)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest(), "little") >> 1


def set_seed(seed: int, device: Any) -> None:
    """Seed what a step on `device` draws from.

    (`torch.manual_seed` also notes a traceback for every kind of device that is absent: milliseconds.)
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
