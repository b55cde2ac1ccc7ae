"""Prediction bias on training rows against class counts ("Classes Are Not Equal", Lemma 1).

At a minimum of plain cross-entropy in an unpenalised bias, the derivative by the bias of class k is zero:
sum_i (p_ik - [y_i = k]) = 0. So the probability that all N training rows give to class k, G_n[k] + G_p[k], is
its number of rows n_k, and G_n[k] is what its own rows miss, n_k - G_p[k]: a class attracts others' images on
the training set exactly as much as its own are doubted. Losses that adjust logits or weigh classes, cosine
heads (no bias) and trainings that stopped early need not obey.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.diagnostics import outputs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingBias:
    """What a head says about the rows that it was fitted to; K numbers each."""

    g_n: Floats  # probability of class k, summed over rows of other classes
    g_p: Floats  # the same over its own rows
    counts: NDArray[np.int64]  # n_k

    @property
    def excess(self) -> Floats:
        """K: (G_n + G_p - n) / n, zero where the lemma holds; NaN for a class without rows."""
        n = np.where(self.counts > 0, self.counts, np.nan)
        return np.asarray((self.g_n + self.g_p - n) / n)

    @property
    def largest_excess(self) -> float:
        """The largest departure from the lemma, as a part of a class's rows."""
        known = np.abs(self.excess[self.counts > 0])
        return float(known.max()) if len(known) else 0.0


def of_blocks(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]], num_classes: int
) -> TrainingBias:
    """From the logits (m x K) and labels (m) of all training rows, block by block."""
    g_n, g_p = np.zeros(num_classes), np.zeros(num_classes)
    counts = np.zeros(num_classes, dtype=np.int64)
    for logits, labels in blocks:
        others, own = outputs.prediction_bias(outputs.softmax(logits), labels)
        g_n, g_p = g_n + others, g_p + own
        counts += np.bincount(labels, minlength=num_classes)
    return TrainingBias(g_n, g_p, counts)
