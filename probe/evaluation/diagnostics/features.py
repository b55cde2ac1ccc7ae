"""What labelled features (N x D) show about each of K classes, before any classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Rows = NDArray[np.floating]


def by_class(features: Rows, labels: Labels) -> Iterator[tuple[int, Floats]]:
    """Each class that occurs and its rows, in float64, in the order of the classes."""
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    for k, rows in zip(present, np.split(order, starts[1:]), strict=True):
        yield int(k), features[rows].astype(np.float64)


def centres(features: Rows, labels: Labels, num_classes: int) -> Floats:
    """K x D class means; NaN for a class without rows."""
    mean = np.full((num_classes, features.shape[1]), np.nan)
    for k, rows in by_class(features, labels):
        mean[k] = rows.mean(axis=0)
    return mean


def spread(features: Rows, labels: Labels, num_classes: int) -> Floats:
    """K: |s_k|^2, the mean squared distance to the class mean, the *sum* of the variances (MR²)."""
    return _of_variances(features, labels, num_classes, np.sum)


def variance_norm(features: Rows, labels: Labels, num_classes: int) -> Floats:
    """K: the Euclidean norm of the vector of variances ("Classes Are Not Equal", figure 2a)."""
    return _of_variances(features, labels, num_classes, np.linalg.norm)


def _of_variances(
    features: Rows, labels: Labels, num_classes: int, reduce: Callable[[Floats], Any]
) -> Floats:
    result = np.full(num_classes, np.nan)
    for k, rows in by_class(features, labels):
        result[k] = reduce(rows.var(axis=0))
    return result


def angles_to_centre(features: Rows, labels: Labels, centre: Floats) -> Floats:
    """N: degrees between each row and its class's centre (DBM, figure 4); NaN where either is zero."""
    own = centre[labels]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = features.astype(np.float64)
        cosine = (rows * own).sum(axis=1) / (np.linalg.norm(rows, axis=1) * np.linalg.norm(own, axis=1))
    return np.asarray(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def separability(features: Rows, labels: Labels, num_classes: int) -> Floats:
    """K: Fisher's criterion of each class against every other, averaged (DBM, eqs. 12 and 13).

    For a pair, J = (m_i - m_j)^2 / (v_i + v_j) of the rows projected on the discriminant S^-1 (mu_i - mu_j).
    A pair has too few rows for a covariance of its own in D dimensions (J would be infinite), so S is the
    within-class covariance of all classes, shrunk towards the identity by the OAS rule; the variances v are
    the two classes' own. In whitened coordinates the direction is mu_i - mu_j itself, and the variances of
    class i along all K - 1 directions come from one product of its rows with the K means.
    """
    mean = centres(features, labels, num_classes)
    whiten = _inverse_root(shrunk_covariance(features.astype(np.float64) - mean[labels]))
    centre = np.nan_to_num(mean) @ whiten
    directions = whiten @ centre.T  # D x K
    variance = np.zeros((num_classes, num_classes))  # [i, j]: of class i along mu_i - mu_j
    for k, rows in by_class(features, labels):
        projected = rows @ directions  # n_k x K
        variance[k] = (projected[:, [k]] - projected).var(axis=0)
    norm2 = (centre**2).sum(axis=1)
    distance = np.maximum(norm2[:, None] + norm2 - 2 * centre @ centre.T, 0)  # |mu_i - mu_j|^2
    with np.errstate(invalid="ignore", divide="ignore"):
        criterion = distance**2 / (variance + variance.T)
    known = ~np.isnan(mean[:, 0])
    criterion[:, ~known] = np.nan
    np.fill_diagonal(criterion, np.nan)
    result = np.full(num_classes, np.nan)
    if known.sum() > 1:
        result[known] = np.nanmean(criterion[known], axis=1)
    return result


def shrunk_covariance(centred: Floats) -> Floats:
    """Covariance of centred rows, shrunk by the oracle approximating rule (Chen et al. 2010, eq. 23).

    Equal to scikit-learn's, which also inverts it, and the inverse takes longer than everything else.
    """
    n, dim = centred.shape
    sample = centred.T @ centred / n
    size, scale = (sample**2).mean(), np.trace(sample) / dim
    spare = (n + 1) * (size - scale**2 / dim)
    amount = 1.0 if spare == 0 else min((size + scale**2) / spare, 1.0)
    shrunk: Floats = (1 - amount) * sample
    shrunk.flat[:: dim + 1] += amount * scale
    return shrunk


def _inverse_root(covariance: Floats) -> Floats:
    """W with Wᵀ S W = I: by Cholesky, which is far cheaper than eigenvectors, unless S is singular."""
    with suppress(np.linalg.LinAlgError):
        return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)).T)
    values, vectors = np.linalg.eigh(covariance)
    floor = max(values.max(), 1.0) * np.finfo(np.float64).eps * len(values)
    return np.asarray(vectors / np.sqrt(np.maximum(values, floor)))


def largest_distances(features: Rows, labels: Labels) -> Floats:
    """N: distance of each row to the farthest of its class, over the largest norm of all (ELM, figure 4)."""
    result = np.zeros(len(labels))
    order = np.argsort(labels, kind="stable")
    start = 0
    for _, rows in by_class(features, labels):
        norm2 = (rows**2).sum(axis=1)
        squared = norm2[:, None] + norm2 - 2 * rows @ rows.T
        result[order[start : start + len(rows)]] = np.sqrt(np.maximum(squared, 0).max(axis=1))
        start += len(rows)
    largest = np.sqrt((features.astype(np.float64) ** 2).sum(axis=1).max())
    return result / largest if largest > 0 else result


def map_of(
    features: Rows, labels: Labels, chosen: Sequence[int], *, per_class: int = 25, seed: int = 0
) -> tuple[Floats, NDArray[np.int64]]:
    """t-SNE: points in the plane (P x 2) for up to `per_class` rows of each chosen class, and these rows."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(labels == k))[:per_class] for k in chosen] or [np.empty(0, np.int64)]
    ).astype(np.int64)
    if len(rows) < 4:
        return np.empty((0, 2)), rows[:0]
    x = features[rows].astype(np.float64)
    x = PCA(min(30, *x.shape), random_state=seed).fit_transform(x)
    if not np.ptp(x[:, 0]) > 1e-12 * np.abs(features[rows]).max():  # all of them the same image
        return np.empty((0, 2)), rows[:0]
    perplexity = min(30.0, (len(rows) - 1) / 3)
    # exact: for so few points it is faster than the tree, and it starts no threads
    tsne = TSNE(perplexity=perplexity, init="pca", method="exact", max_iter=500, random_state=seed)
    plane = tsne.fit_transform(x)
    return plane.astype(np.float64), rows
