"""What the logits of a test split tell about each class. N images, K classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def softmax(logits: NDArray[np.floating]) -> Floats:
    """N x K probabilities."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=1, keepdims=True)
    return shifted


def prediction_bias(probability: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """G_n and G_p, K numbers each ("Classes Are Not Equal", eqs. 3 and 4).

    G_n[k] is the probability (N x K) of class k, summed over the images of all *other* classes; G_p[k] the
    same over its own images. All G_n and G_p together sum to N. A class with a large G_n attracts images of
    other classes.
    """
    own = probability[np.arange(len(labels)), labels]
    g_p = np.bincount(labels, weights=own, minlength=probability.shape[1]).astype(np.float64)
    return probability.sum(axis=0) - g_p, g_p


def logit_margins(logits: NDArray[np.floating], labels: Labels) -> Floats:
    """N: f_y(x) - max over other classes of f(x), negative where an image is misclassified (ELM)."""
    rows = np.arange(len(labels))
    rivals = logits.astype(np.float64)
    own = rivals[rows, labels]
    rivals[rows, labels] = -np.inf
    margins: Floats = own - rivals.max(axis=1)
    return margins


def quantiles(values: NDArray[np.floating], number: int = 41) -> list[float]:
    """The distribution of `values`: its quantiles at equally spaced levels from 0 to 1."""
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, number))] if len(values) else []


@dataclass(frozen=True)
class Confusion:
    """Images of one class that were mistaken for another."""

    true: int
    predicted: int
    count: int
    rows: list[int]  # test rows of the most confident of these mistakes


def top_confusions(
    prediction: Labels,
    labels: Labels,
    confidence: NDArray[np.floating],
    *,
    number: int = 12,
    examples: int = 4,
) -> list[Confusion]:
    """The most frequent confusions; on ties, smaller class indices first."""
    wrong = np.flatnonzero(prediction != labels)
    pairs, which, counts = np.unique(
        np.stack([labels[wrong], prediction[wrong]], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    which = which.ravel()
    found = []
    for pair in np.argsort(-counts, kind="stable")[:number]:
        rows = wrong[which == pair]
        surest = rows[np.argsort(-confidence[rows], kind="stable")][:examples]
        true, predicted = (int(k) for k in pairs[pair])
        found.append(Confusion(true, predicted, int(counts[pair]), [int(r) for r in surest]))
    return found


def class_mean(values: NDArray[np.floating], labels: Labels, num_classes: int) -> Floats:
    """Mean of a per-image value by class; NaN for a class without images."""
    n = np.bincount(labels, minlength=num_classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(labels, weights=values, minlength=num_classes) / n
