"""The terms of methods that are more than a loss, on plain tensors: for training code of any kind.

>>> from probe.losses import functional
>>> contrast = functional.bcl_contrast(views, targets, centres, temperature=0.1)

The dtype of the input is kept. Rows are normalised inside where a method works on unit vectors. Each function
is for the batch it is given: on several processes gather first (`probe.core.collectives`). A gradient goes
into what a method trains; what it holds constant (keys of a momentum encoder, prototypes, weights) gets none.
"""

from __future__ import annotations

from probe.losses.functional.contrast import bcl_contrast, dro_lt_released, gml_contrast, paco
from probe.losses.functional.experts import ncl
from probe.losses.functional.sample_memory import LffState, lff_step
from probe.losses.functional.second_stages import lws, tau_norm

__all__ = [
    "LffState",
    "bcl_contrast",
    "dro_lt_released",
    "gml_contrast",
    "lff_step",
    "lws",
    "ncl",
    "paco",
    "tau_norm",
]
