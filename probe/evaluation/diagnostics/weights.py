"""What the weights of a linear classifier (K x D) show, without any image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def norms(weight: NDArray[np.floating]) -> Floats:
    """K: Euclidean norm of every row; large ones win on long-tailed data ("Classes Are Not Equal", 4.1)."""
    return np.asarray(np.linalg.norm(weight.astype(np.float64), axis=1))


def class_mean_angle(weight: NDArray[np.floating]) -> Floats:
    """K: CMA(i), the mean over all j, i included, of cos(w_i, w_j) (eq. 2).

    Smaller is more separated; 0 for an equiangular tight frame. One product with the sum of the unit rows.
    """
    length = np.maximum(norms(weight), np.finfo(np.float64).tiny)
    unit = weight.astype(np.float64) / length[:, None]
    return np.asarray(unit @ unit.mean(axis=0))
