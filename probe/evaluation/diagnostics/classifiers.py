"""Is the representation or the classifier to blame? Two classifiers that no training bias can touch.

If the classes that suffer under the linear head suffer here too, their features are the problem
("Classes Are Not Equal", figure 5 c and d).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Rows = NDArray[np.floating]

STRENGTHS = np.logspace(-4, 1, 6)  # of the ridge penalty, in units of the mean eigenvalue


def neighbours(train: Rows, train_labels: Labels, test: Rows, num_classes: int, *, k: int = 20) -> Labels:
    """Classes by a majority vote of the k nearest training rows, unweighted, k = 20 as in the paper."""
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
    """K unit vectors of an equiangular tight frame in K dimensions: sqrt(K / (K - 1)) (I - 1 1^T / K)."""
    k = num_classes
    return np.sqrt(k / max(k - 1, 1)) * (np.eye(k) - 1 / k)


def equiangular(train: Rows, train_labels: Labels, test: Rows, num_classes: int) -> Labels:
    """Classes by a fixed simplex: every class vector of one length and at one angle to every other.

    On frozen features some map must lead to the simplex, or the assignment of classes to its vectors would be
    arbitrary. It is the least-squares one, with the ridge penalty of the smallest leave-one-out error, which
    has a closed form: with X = U S V^T (centred), fitted values are U diag(s^2 / (s^2 + l)) U^T Y, and the
    error of a row left out is its residual over 1 - its leverage.
    """
    frame = simplex(num_classes)
    target = frame[train_labels]
    centre, level = train.mean(axis=0, dtype=np.float64), target.mean(axis=0)
    u, s, vt = _thin_svd(train - centre)
    toward = u.T @ (target - level)  # R x K

    def left_out(penalty: float) -> float:
        keep = s**2 / (s**2 + penalty)
        residual = target - level - (u * keep) @ toward
        leverage = 1 / len(train) + (u**2) @ keep
        return float((residual**2).sum(axis=1) @ (1 / np.maximum(1 - leverage, 1e-9)) ** 2)

    penalty = min(STRENGTHS * (s**2).mean(), key=left_out)
    weight = vt.T @ ((s / (s**2 + penalty))[:, None] * toward)
    return ((((test - centre) @ weight) + level) @ frame.T).argmax(axis=1)


def _thin_svd(x: NDArray[np.floating]) -> tuple[NDArray[np.float64], ...]:
    """U, S, V^T by the smaller Gram matrix: a fraction of the time of a full SVD, and exact enough here."""
    x = x.astype(np.float64)
    tall = len(x) >= x.shape[1]
    values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
    kept = values > values.max() * 1e-10
    s, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return (x @ vectors / s, s, vectors.T) if tall else (vectors, s, (x.T @ vectors / s).T)
