"""Which labels of training images look wrong, and how many of each class are expected to be.

In the manner of confident learning (Northcutt et al. 2021): every class has its own threshold, set by the
probabilities that held-out images labelled with it get. Let t_j be their upper quartile, so that a share q_j
(a quarter) of class j is in its *core*, p_j >= t_j. An image of class j that was labelled i by mistake is
held out too, so it is in that core with the same probability q_j. Hence each image labelled i in the core of
another class j stands for 1 / q_j wrong labels of class i:

    expected_i = sum over images labelled i, in the core of j != i, of 1 / q_j

with q_j the share of the rightly labelled images of class j, of which there are n_j - expected_j.
Where classes are far apart this is close to the truth whatever the calibration, because only the order of
the probabilities within a class matters. Where two classes overlap, images that truly look like the other
class are counted too; the quartile (confident learning takes the mean) keeps them few, but no probability can
tell them from wrong labels. The interval is that of a Poisson count, and knows nothing of the overlap.

Suspects to look at are more: images whose best other class has at least the median probability of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CORE = 0.75  # quantile of a class's own probabilities at which its core begins
LISTED = 0.5  # the same for images that are listed
STEPS = 50  # to numbers that agree with each other, to far more digits than they have
CONFIDENT = 0.5  # no probability below it is confident, however unsure the probes are of a class


@dataclass(frozen=True)
class Suspects:
    """n images, K classes."""

    rows: Labels  # images whose labels look wrong, the surest first
    expected: Floats  # K: wrong labels to expect among the images of each class
    low: Floats  # K: ends of the 95 % interval
    high: Floats  # K


def find(
    labels: Labels,
    own: NDArray[np.floating],
    rival: Labels,
    rival_probability: NDArray[np.floating],
    num_classes: int,
) -> Suspects:
    """From the held-out probability of each image's label (n) and of its best other class (n)."""
    wrong = (rival_probability > own) & (rival != labels)
    core, listed = (thresholds(labels, own, num_classes, level) for level in (CORE, LISTED))
    n = np.bincount(labels, minlength=num_classes)
    reached = np.bincount(labels[own >= core[labels]], minlength=num_classes)
    usable = (reached > 0)[rival]
    counted = np.flatnonzero(wrong & usable & (rival_probability >= core[rival]))
    count = np.bincount(labels[counted], minlength=num_classes)
    expected = _settled(labels[counted], rival[counted], n, reached)
    # where there is no such image: what one would stand for
    usual = 1 / (1 - CORE)
    scale = np.where(count > 0, expected / np.maximum(count, 1), usual)
    low, high = poisson_interval(count)
    rows = np.flatnonzero(wrong & (rival_probability >= listed[rival]))
    surest = np.lexsort((rows, -(rival_probability[rows].astype(np.float64) - own[rows])))
    return Suspects(
        rows[surest],
        expected,
        np.minimum(low * scale, n),
        np.minimum(high * scale, n),
    )


def _settled(labels: Labels, rival: Labels, n: NDArray[np.int64], reached: NDArray[np.int64]) -> Floats:
    """K: wrong labels of each class, such that 1 / q_j = (n_j - wrong_j) / reached_j agrees with them.

    `labels` and `rival` are those of the images in other classes' cores.
    """
    wrong = np.zeros(len(n))
    for _ in range(STEPS):
        stands_for = (n - wrong) / np.maximum(reached, 1)
        found = np.bincount(labels, weights=stands_for[rival], minlength=len(n))
        wrong = np.minimum((wrong + found) / 2, n)  # half the way, so that it does not swing
    return wrong


def thresholds(labels: Labels, own: NDArray[np.floating], num_classes: int, level: float) -> Floats:
    """K: a quantile of the label's probability over each class's images, at least CONFIDENT; else inf."""
    found = np.full(num_classes, np.inf)
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    for k, values in zip(present, np.split(own[order], starts[1:]), strict=True):
        found[k] = max(float(np.quantile(values, level)), CONFIDENT)
    return found


def poisson_interval(count: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The exact 95 % interval of a Poisson mean (Garwood 1936) for each count."""
    from scipy.stats import chi2

    low = np.where(count > 0, chi2.ppf(0.025, 2 * np.maximum(count, 1)) / 2, 0.0)
    return low, np.asarray(chi2.ppf(0.975, 2 * count + 2) / 2)
