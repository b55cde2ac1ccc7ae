"""Representation or classifier? Two classifiers that have no trained weights to be biased.

If classes that are hard for the linear head are hard here too, their features are the problem
("Classes Are Not Equal", figure 5 c and d).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Rows = NDArray[np.floating]

L2_GRID = np.logspace(-4, 1, 6)  # ridge penalties, in units of the mean eigenvalue


def neighbours(train: Rows, train_labels: Labels, test: Rows, num_classes: int, *, k: int = 20) -> Labels:
    """Classes of the test rows, by a vote of the k nearest training rows; 20 as in the paper."""
    import torch

    from probe.solve import knn

    votes = knn.votes(
        torch.from_numpy(np.ascontiguousarray(train)),
        torch.from_numpy(train_labels),
        torch.from_numpy(np.ascontiguousarray(test)),
        num_classes=num_classes,
        k=k,
        weighted=False,
    )
    return votes.argmax(dim=1).numpy()


def simplex(num_classes: int) -> NDArray[np.float64]:
    """K x K: the unit vectors of an equiangular tight frame, sqrt(K / (K - 1)) (I - 1 1^T / K)."""
    k = num_classes
    return np.asarray(np.sqrt(k / max(k - 1, 1)) * (np.eye(k) - 1 / k))


def equiangular(train: Rows, train_labels: Labels, test: Rows, num_classes: int) -> Labels:
    """Classes of the test rows, by a fixed simplex: class vectors of equal length, all at the same angle.

    Frozen features must be mapped to the simplex first, or the assignment of classes to its vectors would be
    arbitrary. The map is the least-squares one, with the ridge penalty of the smallest leave-one-out error,
    which has a closed form: with X = U S V^T (centred), fitted values are U diag(s^2 / (s^2 + l)) U^T Y, and
    the error of a row left out is its residual divided by 1 - its leverage.
    """
    frame = simplex(num_classes)
    target = frame[train_labels]
    centre, level = train.mean(axis=0, dtype=np.float64), target.mean(axis=0)
    u, s, vt = _thin_svd(train - centre)
    projected = u.T @ (target - level)  # R x K

    def leave_one_out_error(penalty: float) -> float:
        keep = s**2 / (s**2 + penalty)
        residual = target - level - (u * keep) @ projected
        leverage = 1 / len(train) + (u**2) @ keep
        return float((residual**2).sum(axis=1) @ (1 / np.maximum(1 - leverage, 1e-9)) ** 2)

    penalty = min(L2_GRID * (s**2).mean(), key=leave_one_out_error)
    weight = vt.T @ ((s / (s**2 + penalty))[:, None] * projected)
    scores = (((test - centre) @ weight) + level) @ frame.T
    return np.asarray(scores.argmax(axis=1))


def _thin_svd(x: NDArray[np.floating]) -> tuple[NDArray[np.float64], ...]:
    """U, S, V^T from the smaller Gram matrix: far faster than a full SVD, and accurate enough here."""
    x = x.astype(np.float64)
    tall = len(x) >= x.shape[1]
    values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
    kept = values > values.max() * 1e-10
    s, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return (x @ vectors / s, s, vectors.T) if tall else (vectors, s, (x.T @ vectors / s).T)
