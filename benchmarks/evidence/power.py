"""What a design can see: the smallest true gain that would be clear in four of five repetitions.

A gain's interval has one part from test images, one from seeds and one from which images a seed gets wrong by
chance (`probe.evaluation.significance`). With another number of seeds the last two change in proportion. The
estimate is as good as that of the variance between seeds: from two seeds it can be off by several times, and
one seed tells nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from probe.evaluation import significance

POWER = 0.8


def smallest_gain(gain: Mapping[str, Any], seeds: int) -> float:
    """In fractions, before any correction, with so many seeds and the spread that this gain has shown."""
    shown = significance.from_parts(0.0, gain["parts"])
    more = shown.seeds / seeds
    chance = more * shown.interaction
    e = replace(
        shown,
        center=np.zeros(1),
        images=shown.images - shown.interaction + chance,
        interaction=chance,
        between=more * shown.between,
        seeds=seeds,
    )
    low, high = e.interval()[0]
    z, t = ndtri(POWER), stdtrit(max(seeds - 1, 1), POWER)
    spread = np.sqrt(z**2 * e.images + t**2 * np.maximum(e.between - chance, 0))
    return min(float((high - low) / 2 + spread[0]), 1.0)
