"""How certain a number is: one model of the sources of variation, for every figure of every table.

A statistic (overall, mean per class, a group, one class) is a fixed weighting w of the K class means of a
value v[s, i] of seed s and test image i: 1 for a correct prediction, or, for a comparison, the difference of
two methods on the same image and seed, which is what makes it paired. The model is a two-way layout:

    v[s, i] = mu_k + a_i + b[s, k] + e[s, i]            image i of class k, seed s

a: some images are easier, for every seed. b: some seeds are better at a class, or at all of them. e: which
images a seed gets wrong by chance. Test images and seeds are both samples, and the variance of the mean is

    images + seeds,   images = sum_k w_k^2 (var a + var e / S) / n_k,   seeds = var(sum_k w_k b[s, k]) / S

**Images.** Each image has a mean over the seeds; the variance between these means gives `images`, whatever
the seeds do. Where few images are wrong, or few changed, the sample variance is too small, so pseudo-images
are added at both ends of the scale: two correct and two wrong ones for an accuracy (Agresti and Coull 1998),
one won and one lost for a gain (Bonett and Price 2012), divided among the classes. A class of n images has
n - 1 degrees of freedom of its own and borrows one from all images of the statistic, which is the only one
that a class with a single image has. A gain is tested with its variance under the null hypothesis, as in
McNemar's test: if every mean is shifted by d, the variance grows by d^2 times `curvature`.

**Seeds.** The variance of the S per-seed means, divided by S, is `between`. It contains the variance of the
seeds and, a second time, that of e, which `interaction` estimates from all images. A handful of seeds can
agree by chance, so what the seeds show can only widen the interval that the images give:

    half^2 = z^2 images + max(0, t^2 between - kappa z^2 interaction)

with Student's t of S - 1 degrees of freedom. kappa = 1 is never too narrow at any level (Banerjee 1961), but
far too wide where seeds do not differ. kappa = 1 + 6/S (1/(S - 1) + 1 - interaction / images) narrows it
there: for normal errors the false-alarm rate is then at most 1.16 times the nominal one, from 5 % down to one
in a million, whatever the variance of the seeds (`test_significance.py` integrates it). The per-seed means
move in steps of one image, so two or three of them coincide exactly far more often than normal variables
would; the variance of rounding to such a step, step^2 / 12, is therefore part of `between`. Seeds that agree
on every single image are the same head, and get no such part. With two seeds t is 12.7: the variance between
seeds is hardly known, and the interval shows it. With one seed the interval is about that one trained head;
what another seed would give cannot be known.

The p-value is the level at which the interval begins to contain 0, so the two never disagree.
`tests/evaluation/test_coverage.py` checks all of this by simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05  # what "clear" means: a two-sided 95 % interval
LARGEST_Z = 21.0  # a p-value of 1e-97
BISECTIONS = 40  # of z: more digits than anyone reads
PARTS = ("center", "images", "between", "interaction", "curvature")  # arrays of `Estimates` in result.json

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The range of a value, and how many pseudo-images are added at each end of it."""

    low: float
    high: float
    pseudo: float


ACCURACY = Scale(0.0, 1.0, 2.0)
GAIN = Scale(-1.0, 1.0, 1.0)
SIDE = Scale(0.0, 1.0, 1.0)  # one of two accuracies whose difference is asked for


@dataclass(frozen=True)
class ClassMoments:
    """Moments of each class's values: enough to compute any weighting of the class means."""

    scale: Scale
    n: NDArray[np.int64]  # K, images of each class
    by_seed: Floats  # S x K, class means of each seed; 0 for a class without images
    mean: Floats  # K
    images: Floats  # K, variance between the images' means over seeds (divided by n)
    values: Floats  # K, variance of all values (divided by S n); at least `images`
    interaction: Floats  # K, unbiased variance of e; 0 where it cannot be estimated


@dataclass(frozen=True)
class Estimates:
    """M statistics, each with the terms of its interval and its p-value (arrays of length M)."""

    mean: Floats
    center: Floats  # of the interval: the mean with pseudo-images
    images: Floats
    between: Floats
    interaction: Floats
    curvature: Floats
    seeds: int
    scale: Scale

    def interval(self, level: float | Floats = LEVEL) -> Floats:
        """M x 2: the interval of confidence 1 - level, clipped to the range of the value."""
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
        added: Floats = np.maximum(0, t2 * self.between - z**2 * self._kappa_interaction)
        return added

    @cached_property
    def _kappa_interaction(self) -> Floats:
        share = self.interaction / np.maximum(self.images, 1e-300)
        return (1 + 6 / self.seeds * (1 / max(self.seeds - 1, 1) + 1 - share)) * self.interaction

    @cached_property
    def p(self) -> Floats:
        """M two-sided p-values of "the true value is 0": the level at which the interval reaches 0."""
        from scipy.special import ndtr

        d2 = self.center**2
        # Without seeds d^2 (1 - z^2 curvature) = z^2 images has a closed form; seeds make z smaller: bisect.
        high = np.minimum(np.sqrt(d2 / np.maximum(self.images + d2 * self.curvature, 1e-300)), LARGEST_Z)
        if (self._added_by_seeds(high) > 0).any():
            low = np.zeros_like(high)
            for _ in range(BISECTIONS):
                z = (low + high) / 2
                contains = z**2 * (self.images + d2 * self.curvature) + self._added_by_seeds(z) >= d2
                low, high = np.where(contains, low, z), np.where(contains, z, high)
        p: Floats = 2 * ndtr(-high)
        return np.where(self.center * self.mean > 0, p, 1.0)

    def parts(self, index: int) -> dict[str, float]:
        """What `from_parts` rebuilds one statistic from: plain numbers, for result.json."""
        return {**{name: float(getattr(self, name)[index]) for name in PARTS}, "seeds": self.seeds}


def from_parts(mean: float, parts: Mapping[str, Any]) -> Estimates:
    """The inverse of `Estimates.parts`, for a gain."""
    arrays = {name: np.array([float(parts[name])]) for name in PARTS}
    return Estimates(np.array([float(mean)]), seeds=int(parts["seeds"]), scale=GAIN, **arrays)


def class_moments(
    values: NDArray[np.generic], labels: NDArray[np.int64], num_classes: int, scale: Scale
) -> ClassMoments:
    """The moments of `values` (S x N) by class, labels (N); integer values are summed without rounding."""
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
    # Sums of squares about the class mean, times S n: differences of integers where the values are integers.
    images = (count * of_images - total**2) / (seeds * count)
    everything = (seeds * count * of_values - total**2) / (seeds * count)
    of_seeds = (seeds * (by_seed**2).sum(axis=0) - total**2) / (seeds * count)
    dof = (n - 1) * (seeds - 1)
    residual = np.maximum(everything - images - of_seeds, 0) / np.maximum(dof, 1)
    return ClassMoments(
        scale=scale,
        n=n,
        by_seed=by_seed / count,
        mean=total / (seeds * count),
        images=np.maximum(images, 0) / (seeds * count),
        values=np.maximum(everything, 0) / (seeds * count),
        interaction=np.where(dof > 0, residual, 0.0),
    )


def estimates(m: ClassMoments, weights: Floats) -> Estimates:
    """A statistic for each row of `weights` (M x K, rows sum to 1); classes without images are left out."""
    seeds = len(m.by_seed)
    used = (weights > 0) & (m.n > 0)
    w = np.where(used, weights, 0.0)
    ratio = _averaging(m, used)
    n, shift, variance = _with_pseudo_images(m, used, ratio)
    images = (w**2 * variance / n).sum(axis=1)
    interaction = (w**2 * m.interaction / (np.maximum(m.n, 1) * seeds)).sum(axis=1)
    mean = w @ m.mean
    return Estimates(
        mean=mean,
        center=mean + (w * shift).sum(axis=1),
        images=images,
        between=_between(m, w, interaction),
        interaction=np.minimum(interaction, images),
        curvature=ratio * (w**2 / n).sum(axis=1) if m.scale == GAIN else np.zeros(len(w)),
        seeds=seeds,
        scale=m.scale,
    )


def differences(m: ClassMoments, first: Floats, second: Floats) -> Estimates:
    """Accuracy of `first` minus that of `second` (M x K weights each), which share no images in any row.

    The images of the two sides are independent, so what they add to the variance adds up, each side with one
    correct and one wrong pseudo-image (Agresti and Caffo 2000). Seeds are shared: a seed that is better at
    both sides leaves their difference as it is, so `between` is that of the seeds' differences.
    """
    side = replace(m, scale=SIDE)
    a, b = estimates(side, first), estimates(side, second)
    signed = np.where(m.n > 0, first - second, 0.0)
    interaction = a.interaction + b.interaction
    return Estimates(
        mean=a.mean - b.mean,
        center=a.center - b.center,
        images=a.images + b.images,
        between=_between(m, signed, interaction),
        interaction=interaction,
        curvature=np.zeros(len(first)),
        seeds=a.seeds,
        scale=GAIN,
    )


def _between(m: ClassMoments, w: Floats, interaction: Floats) -> Floats:
    """M: the variance of the seeds' statistics over their number, and of rounding them to whole images."""
    seeds = len(m.by_seed)
    part = np.where(w != 0, np.abs(w) / np.maximum(m.n, 1), np.inf)  # one image's part of a seed's mean
    rounding = np.minimum(part.min(axis=1) ** 2 / (12 * seeds), interaction)
    by_seed = w @ m.by_seed.T  # M x S
    between = by_seed.var(axis=1, ddof=1) / seeds if seeds > 1 else np.zeros(len(w))
    return np.asarray(between + rounding)


def _averaging(m: ClassMoments, used: NDArray[np.bool_]) -> Floats:
    """M: the variance of an image's mean over seeds, relative to that of a single value; 1 if unknown.

    Several seeds that err on different images tell more than one, so a pseudo-image counts for less.
    """
    ratio: Floats = (used @ (m.n * m.images) + 1) / (used @ (m.n * m.values) + 1)
    return ratio


def _with_pseudo_images(
    m: ClassMoments, used: NDArray[np.bool_], ratio: Floats
) -> tuple[Floats, Floats, Floats]:
    """M x K each: images with pseudo-images, how far these move the class mean, and the variance."""
    scale = m.scale
    pseudo = used * (scale.pseudo * ratio / np.maximum(used.sum(axis=1), 1))[:, None]  # at each end
    n = np.maximum(m.n, 1) + 2 * pseudo
    low, high = scale.low - m.mean, scale.high - m.mean
    shift = pseudo * (low + high) / n
    borrowed = _pooled_variance(m, used)[:, None]
    variance = (m.n * m.images + borrowed + pseudo * (low**2 + high**2)) / n - shift**2
    return n, shift, variance


def _pooled_variance(m: ClassMoments, used: NDArray[np.bool_]) -> Floats:
    """M: the variance of the images of all used classes about their common mean."""
    number = np.maximum(used @ m.n, 1)
    mean = used @ (m.n * m.mean) / number
    squares = used @ (m.n * (m.images + m.mean**2)) - number * mean**2
    variance: Floats = np.maximum(squares, 0) / np.maximum(number - 1, 1)
    return variance


def weightings(n: NDArray[np.int64], groups: Mapping[str, list[int]]) -> dict[str, Floats]:
    """The weights (K) of the class accuracies in each statistic: overall by images, a group by classes."""
    table = {"overall": n / n.sum(), "mean_per_class": (n > 0) / (n > 0).sum()}
    for name, members in groups.items():
        weight = np.zeros(len(n))
        weight[[k for k in members if n[k] > 0]] = 1
        table[name] = weight / max(weight.sum(), 1)
    return table


def holm(p: Sequence[float] | Floats) -> Floats:
    """Holm's adjusted p-values: reject those below 0.05, and the chance of any false alarm is below 5 %."""
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    steps = raw[order] * np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def corrected_level(p: float | Floats, p_holm: float | Floats) -> Floats:
    """The level whose interval excludes 0 exactly where Holm's p-value is below LEVEL."""
    level: Floats = LEVEL * np.asarray(p, dtype=np.float64) / np.asarray(p_holm, dtype=np.float64)
    return level
