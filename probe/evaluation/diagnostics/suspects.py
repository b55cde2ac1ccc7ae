"""Which labels of training images look wrong, and how many of each class are expected to be.

In the manner of confident learning (Northcutt et al. 2021): every class has its own threshold, set by the
probabilities that held-out images labelled with it get. Let t_j be their upper quartile, so that a share q_j
(a quarter) of class j is in its *core*, p_j >= t_j. An image of class j that was labelled i by mistake is
held out too, so it is in that core with the same probability q_j. Hence each image labelled i in the core of
another class j stands for 1 / q_j wrong labels of class i:

    expected_i = sum over images labelled i, in the core of j != i and unlike i, of 1 / q_j

with q_j the share of the rightly labelled images of class j, of which there are n_j - expected_j.

Where classes overlap, images that are rightly labelled reach the core of the other class too. What tells them
from wrong labels is their own class, which they still resemble. *Unlike i* is an image that is given to i no
more than the median image in the core of j is. Half of the wrong labels or more pass, so the sum is cautious:
with planted ones 0.5 to 1.4 times the truth (0.4 to 2 in classes of a dozen images), and on clean labels
0.4 % of pets (3 % without this) and 5 % of CIFAR-100 (22 %). These 5 % are still false: probes that are wrong
about every other image take their own errors for wrong labels. So nothing is said (NaN) where the classes'
mean accuracy is below SURE, nor by a core that fewer than FEWEST of its class reach. The interval is a
Poisson count's and knows none of this.

Suspects to look at are more: images whose best other class has at least the median probability of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.crossfitted import Crossfitted

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CORE = 0.75  # quantile of a class's own probabilities at which its core begins
LISTED = 0.5  # the same for images that are listed
STEPS = 50  # to numbers that agree with each other, to far more digits than they have
CONFIDENT = 0.5  # no probability below it is confident, however unsure the probes are of a class
SURE = 0.6  # mean accuracy of the classes, below which a number of wrong labels would be made up
FEWEST = 1 / 8  # share of a class in its own core, below which an image there cannot stand for others


@dataclass(frozen=True)
class Suspects:
    """n images, K classes."""

    rows: Labels  # images whose labels look wrong, the surest first
    expected: Floats  # K: wrong labels to expect among the images of each class; NaN: the probes cannot tell
    low: Floats  # K: ends of the 95 % interval
    high: Floats  # K


def find(said: Crossfitted) -> Suspects:
    """From the held-out probabilities of n images."""
    labels, rival, num_classes = said.labels, said.rival, said.num_classes
    wrong = (said.rival_probability > said.own) & (rival != labels)
    core, listed = (thresholds(labels, said.own, num_classes, level) for level in (CORE, LISTED))
    n = np.bincount(labels, minlength=num_classes)
    inside = said.own >= core[labels]
    reached = np.bincount(labels[inside], minlength=num_classes)
    usable = reached >= np.maximum(FEWEST * n, 1)
    counted = np.flatnonzero(wrong & usable[rival] & (said.rival_probability >= core[rival]))
    counted = counted[said.own[counted] <= _usual(said, inside, labels[counted], rival[counted])]
    count = np.bincount(labels[counted], minlength=num_classes)
    expected = _settled(labels[counted], rival[counted], n, reached)
    # where there is no such image: what one would stand for
    usual = 1 / (1 - CORE)
    scale = np.where(count > 0, expected / np.maximum(count, 1), usual)
    ends = (np.minimum(end * scale, n) for end in poisson_interval(count))
    rows = np.flatnonzero(wrong & (said.rival_probability >= listed[rival]))
    surest = np.lexsort((rows, -(said.rival_probability[rows].astype(np.float64) - said.own[rows])))
    known = 1.0 if np.nanmean(said.accuracy) >= SURE else np.nan
    return Suspects(rows[surest], *(known * numbers for numbers in (expected, *ends)))


def _usual(said: Crossfitted, inside: NDArray[np.bool_], labels: Labels, rivals: Labels) -> Floats:
    """m: what the median image in the core of each rival gives to each label."""
    order = np.argsort(said.labels, kind="stable")
    ends = np.cumsum(np.bincount(said.labels, minlength=said.num_classes))
    found = np.empty(len(labels))
    for j in np.unique(rivals):
        own = order[ends[j - 1] if j else 0 : ends[j]]
        core = own[inside[own]]
        for i in np.unique(labels[rivals == j]):
            about = (rivals == j) & (labels == i)
            found[about] = np.median(said.probabilities(core, np.array([i])))
    return found


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
