"""How sure a number is: one model of where variation comes from, for every figure of every table.

A statistic (overall, mean per class, a group, one class) is a fixed weighting w of the K class means of
some value v[s, i] of seed s and test image i: 1 for a correct prediction, or for a comparison the
difference of two methods on the same image and seed, which is what makes it paired. The model is a two-way
layout:

    v[s, i] = mu_k + a_i + b[s, k] + e[s, i]            image i of class k, seed s

a: some images are easier, for every seed. b: some seeds are better at a class, or at all of them. e: which
images a seed gets wrong by chance. Test images and seeds are both samples, and the variance of the mean is

    images + seeds,   images = sum_k w_k^2 (var a + var e / S) / n_k,   seeds = var(sum_k w_k b[s, k]) / S

**Images.** The variance between the images' means over seeds gives `images`, whatever the seeds do. Where
few images are wrong, or few changed, the sample shows too little of it, so pseudo-images stand at both ends
of the scale: two right and two wrong for an accuracy (Agresti and Coull 1998), one won and one lost for a
gain (Bonett and Price 2012), shared out over the classes. A class of n images has n - 1 degrees of freedom
of its own and is lent one by all images of the statistic, which is all that a class of one image has. A
gain is judged by its variance under the hypothesis that is tested, as in McNemar's test: with every mean
moved by d, the variance is larger by d^2 times `curvature`.

**Seeds.** The variance of the S seeds' own means, over S, is `between`. It holds the seeds' variance and,
once more, that of e, which `interaction` estimates from all images. A handful of seeds can agree by chance,
so what they show only ever adds to what the images show:

    half^2 = z^2 images + max(0, t^2 between - kappa z^2 interaction)

with Student's t of S - 1 degrees of freedom. With kappa = 1 this is never too narrow at any level (Banerjee
1961), and far too wide where seeds do not differ. kappa = 1 + 6/S (1/(S - 1) + 1 - interaction / images)
spends that where it can: for normal errors the chance of a false alarm is then at most 1.16 times the
nominal one, from 5 % to one in a million, whatever the seeds' variance is (`test_significance.py` integrates
it). Seeds' means come in steps of one image, so two or three of them agree to the last image far more often
than normal ones would; the variance of rounding to such a step, step^2 / 12, is part of `between`. Seeds
that agree on every single image are the same head, and have no such part. With two seeds t is 12.7: their
spread is hardly known, and the interval says so. With one seed the interval is about that one trained head;
what another seed would give cannot be known.

The p-value is the level at which the interval begins to hold 0, so the two are always of one mind.
`tests/evaluate/test_coverage.py` tries all of this by simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05  # what "clear" means: a two-sided 95 % interval
LARGEST_Z = 21.0  # a p-value of 1e-97
HALVINGS = 40  # of z: to more digits than anyone reads

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The range of a value, and how many pseudo-images stand at each end of it."""

    low: float
    high: float
    pseudo: float


ACCURACY = Scale(0.0, 1.0, 2.0)
GAIN = Scale(-1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Tally:
    """Moments of each class's values: all that any weighting of the class means needs."""

    scale: Scale
    n: NDArray[np.int64]  # K, images of each class
    by_seed: Floats  # S x K, class means of each seed; 0 for a class without images
    mean: Floats  # K
    images: Floats  # K, variance between the images' means over seeds (divided by n)
    values: Floats  # K, variance of all values (divided by S n); at least `images`
    interaction: Floats  # K, unbiased variance of e; 0 where it cannot be known


@dataclass(frozen=True)
class Estimates:
    """M statistics, each with what its interval and its p-value are made of (arrays of length M)."""

    mean: Floats
    center: Floats  # of the interval: the mean with pseudo-images
    images: Floats
    between: Floats
    interaction: Floats
    curvature: Floats
    seeds: int
    scale: Scale

    def interval(self, level: float | Floats = LEVEL) -> Floats:
        """M x 2: the interval of confidence 1 - level, within what is possible."""
        half = np.sqrt(self._half_squared(np.broadcast_to(level, self.mean.shape)))
        low = np.minimum(np.maximum(self.center - half, self.scale.low), self.mean)
        high = np.maximum(np.minimum(self.center + half, self.scale.high), self.mean)
        return np.stack([low, high], axis=-1)

    @cached_property
    def ci(self) -> Floats:
        """M x 2: the 95 % intervals."""
        return self.interval()

    def _half_squared(self, level: Floats) -> Floats:
        from scipy.special import ndtri

        z = -ndtri(level / 2)
        remaining = 1 - z**2 * self.curvature
        squared = z**2 * self.images + self._added_by_seeds(z)
        return np.where(remaining > 0, squared / np.where(remaining > 0, remaining, 1), np.inf)

    def _added_by_seeds(self, z: Floats) -> Floats:
        """max(0, t^2 between - kappa z^2 interaction), with the t of the same level as z."""
        if self.seeds == 1:
            return np.zeros_like(z)
        from scipy.special import ndtr, stdtrit

        t2 = stdtrit(self.seeds - 1, ndtr(-z)) ** 2
        return np.maximum(0, t2 * self.between - z**2 * self._kappa_interaction)

    @cached_property
    def _kappa_interaction(self) -> Floats:
        share = self.interaction / np.maximum(self.images, 1e-300)
        return (1 + 6 / self.seeds * (1 / max(self.seeds - 1, 1) + 1 - share)) * self.interaction

    @cached_property
    def p(self) -> Floats:
        """M two-sided p-values of "the true value is 0": the level at which the interval begins to hold 0."""
        from scipy.special import ndtr

        d2 = self.center**2
        # without seeds: d^2 (1 - z^2 curvature) = z^2 images; what seeds add makes z smaller
        high = np.minimum(np.sqrt(d2 / np.maximum(self.images + d2 * self.curvature, 1e-300)), LARGEST_Z)
        if (self._added_by_seeds(high) > 0).any():
            low = np.zeros_like(high)
            for _ in range(HALVINGS):
                z = (low + high) / 2
                holds = z**2 * (self.images + d2 * self.curvature) + self._added_by_seeds(z) >= d2
                low, high = np.where(holds, low, z), np.where(holds, z, high)
        return np.where(self.center * self.mean > 0, 2 * ndtr(-high), 1.0)

    def parts(self, index: int) -> dict[str, float]:
        """What `from_parts` rebuilds one statistic from: plain numbers, for result.json."""
        columns = ("center", "images", "between", "interaction", "curvature")
        return {**{name: float(getattr(self, name)[index]) for name in columns}, "seeds": self.seeds}


def from_parts(mean: float, parts: Mapping[str, Any]) -> Estimates:
    """The inverse of `Estimates.parts`, for a gain."""
    columns = ("center", "images", "between", "interaction", "curvature")
    arrays = {name: np.array([float(parts[name])]) for name in columns}
    return Estimates(np.array([float(mean)]), seeds=int(parts["seeds"]), scale=GAIN, **arrays)


def tally(values: NDArray[np.generic], labels: NDArray[np.int64], num_classes: int, scale: Scale) -> Tally:
    """The class moments of `values` (seeds x images; whole numbers are summed without rounding)."""
    seeds = len(values)
    n = np.bincount(labels, minlength=num_classes)
    count = np.maximum(n, 1)

    def sums(of: Floats) -> Floats:
        return np.bincount(labels, weights=of, minlength=num_classes).astype(np.float64)

    numbers = values.astype(np.float64)
    by_seed = np.stack([sums(row) for row in numbers])  # S x K
    total = by_seed.sum(axis=0)
    of_images = sums(numbers.sum(axis=0) ** 2)
    of_values = sums((numbers**2).sum(axis=0))
    # Sums of squares about the class mean, times S n: differences of whole numbers where values are whole.
    images = (count * of_images - total**2) / (seeds * count)
    everything = (seeds * count * of_values - total**2) / (seeds * count)
    of_seeds = (seeds * (by_seed**2).sum(axis=0) - total**2) / (seeds * count)
    freedom = (n - 1) * (seeds - 1)
    rest = np.maximum(everything - images - of_seeds, 0) / np.maximum(freedom, 1)
    return Tally(
        scale=scale,
        n=n,
        by_seed=by_seed / count,
        mean=total / (seeds * count),
        images=np.maximum(images, 0) / (seeds * count),
        values=np.maximum(everything, 0) / (seeds * count),
        interaction=np.where(freedom > 0, rest, 0.0),
    )


def estimates(t: Tally, weights: Floats) -> Estimates:
    """A statistic for each row of `weights` (M x K, rows sum to 1); classes without images are left out."""
    seeds, scale = len(t.by_seed), t.scale
    used = (weights > 0) & (t.n > 0)
    w = np.where(used, weights, 0.0)
    # Several seeds that err on different images tell more than one: an image's mean over them varies less
    # than a single value, by `ratio`, and a pseudo-image counts for as much less. Unknown, it is 1.
    ratio = (used @ (t.n * t.images) + 1) / (used @ (t.n * t.values) + 1)
    pseudo = used * (scale.pseudo * ratio / np.maximum(used.sum(axis=1), 1))[:, None]  # M x K, at each end
    lent = _variance_of_all(t, used)[:, None]
    n = np.maximum(t.n, 1) + 2 * pseudo
    low, high = scale.low - t.mean, scale.high - t.mean
    shift = pseudo * (low + high) / n  # of the class mean
    variance = (t.n * t.images + lent + pseudo * (low**2 + high**2)) / n - shift**2
    images = (w**2 * variance / n).sum(axis=1)
    interaction = (w**2 * t.interaction / (np.maximum(t.n, 1) * seeds)).sum(axis=1)
    mean = w @ t.mean
    by_seed = w @ t.by_seed.T  # M x S
    between = by_seed.var(axis=1, ddof=1) / seeds if seeds > 1 else np.zeros(len(w))
    step = np.where(used, w / np.maximum(t.n, 1), np.inf).min(axis=1)  # what one image moves a seed's mean by
    return Estimates(
        mean=mean,
        center=mean + (w * shift).sum(axis=1),
        images=images,
        between=between + np.minimum(step**2 / (12 * seeds), interaction),
        interaction=np.minimum(interaction, images),
        curvature=ratio * (w**2 / n).sum(axis=1) if scale == GAIN else np.zeros(len(w)),
        seeds=seeds,
        scale=scale,
    )


def _variance_of_all(t: Tally, used: NDArray[np.bool_]) -> Floats:
    """M: the variance of the images of all used classes about their common mean."""
    number = np.maximum(used @ t.n, 1)
    mean = used @ (t.n * t.mean) / number
    squares = used @ (t.n * (t.images + t.mean**2)) - number * mean**2
    return np.maximum(squares, 0) / np.maximum(number - 1, 1)


def weightings(n: NDArray[np.int64], groups: Mapping[str, list[int]]) -> dict[str, Floats]:
    """How each statistic weighs the class accuracies: overall by images, a group by classes."""
    table = {"overall": n / n.sum(), "mean_per_class": (n > 0) / (n > 0).sum()}
    for name, members in groups.items():
        weight = np.zeros(len(n))
        weight[[k for k in members if n[k] > 0]] = 1
        table[name] = weight / max(weight.sum(), 1)
    return table


def holm(p: Sequence[float] | Floats) -> Floats:
    """Holm's adjusted p-values: call those below 0.05, and the chance of any false call is below 5 %."""
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    steps = raw[order] * np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def corrected_level(p: float | Floats, p_holm: float | Floats) -> Floats:
    """The level whose interval excludes 0 exactly where Holm's p-value is below LEVEL."""
    return LEVEL * np.asarray(p, dtype=np.float64) / np.asarray(p_holm, dtype=np.float64)
