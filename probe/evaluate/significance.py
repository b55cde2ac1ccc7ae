"""Error bars by a paired, stratified bootstrap over test images and seeds, without touching the images again.

A statistic (overall, mean per class, a group, one class) is a fixed weighting w of the K class means of some
value v[s, i] of seed s and test image i: 1 for a hit, or for a comparison the hit of one method minus that of
the other on the same image and seed, which is what makes it paired.

Images. Within a class, images of equal value (averaged over seeds) are interchangeable. So a resampled test
set is described by how often each *value* occurs in each class: one multinomial draw a class instead of one
random index an image, with exactly the distribution of the image-wise bootstrap. One set of draws (B x K)
serves every weighting by one product.

Seeds. A handful of seeds cannot be resampled usefully: that bootstrap is far too narrow. Instead a normal
error of the variance between seeds is added to the image draws. Seeds also differ because each errs on other
images (the interaction of a two-way layout), which resampling images would count a second time: the image
draws are shrunk by that part, which many images determine well. The sum of the two variances is itself an
estimate, with Satterthwaite's degrees of freedom, so the draws are spread as Student's t is. A variance of
few seeds is more often too small than too large (for three, half of all estimates are below 0.69 of the
truth), and where it is small the degrees of freedom come out large: taken at its face value, intervals of
three seeds cover 92 %. So it is divided by the geometric mean of its own error, which makes its logarithm
unbiased. In simulations (`tests/evaluate/test_significance.py`) intervals of one seed and of three or more
then cover 94 to 96 %; of two, 92 to 96 %.

A class with one test image has no spread of its own; such classes are resampled as one stratum, which counts
the differences between them as well and so errs on the careful side.

Counts are whole, so an interval is widened by half of the step that one image makes (continuity correction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.05  # what "clear" means: a two-sided 95 % interval
MANY = 2000  # degrees of freedom from which Student's t is a normal
RESOLVED = 10  # a tail with fewer draws than this says little about how small p is


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; `p` is the two-sided p-value of "the true value is 0"."""

    mean: float
    ci: tuple[float, float]
    p: float

    @property
    def clear(self) -> bool:
        """Does the interval exclude 0?"""
        return not self.ci[0] <= 0 <= self.ci[1]


@dataclass(frozen=True)
class Draws:
    """Everything that any weighting of the class means needs for its interval."""

    n: NDArray[np.int64]  # K, images of each class
    images: NDArray[np.float64]  # B x K, class means of resampled images; NaN for a class without images
    by_seed: NDArray[np.float64]  # S x K, class means of each seed
    interaction: NDArray[np.float64]  # K, variance of the class mean that images x seeds explain
    seed: int  # of the random numbers


def draw(
    values: NDArray[np.generic],
    labels: NDArray[np.int64],
    num_classes: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Draws:
    """Bootstrap draws of the class means of `values` (seeds x images)."""
    seeds = len(values)
    ordered = values[:, np.argsort(labels, kind="stable")].astype(np.float64)
    n = np.bincount(labels, minlength=num_classes)
    ends = np.cumsum(n)
    rng = np.random.default_rng(seed)
    images = np.full((draws, num_classes), np.nan)
    by_seed = np.full((seeds, num_classes), np.nan)
    interaction = np.zeros(num_classes)
    for k in np.flatnonzero(n):
        rows = ordered[:, ends[k] - n[k] : ends[k]]  # S x n_k
        of_image = rows.mean(axis=0)
        by_seed[:, k] = rows.mean(axis=1)
        images[:, k] = _resampled_mean(of_image, draws, rng)
        if seeds > 1 and n[k] > 1:
            rest = rows - of_image - by_seed[:, k, None] + rows.mean()
            interaction[k] = (rest**2).sum() / ((n[k] - 1) * (seeds - 1)) / (n[k] * seeds)
    single = np.flatnonzero(n == 1)
    if len(single) > 1:
        images[:, single] = _resampled_singles(by_seed[:, single].mean(axis=0), draws, rng)
    return Draws(n, images, by_seed, interaction, seed)


def _resampled_mean(value: NDArray[np.float64], draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of `draws` resamples, widened by sqrt(n / (n - 1)): resampling understates the spread by that."""
    n = len(value)
    # means over seeds are few fractions; rounding makes equal ones equal in the last bit too
    distinct, counts = np.unique(value.round(9), return_counts=True)
    if len(distinct) == 1:
        return np.full(draws, distinct[0])
    sample = rng.multinomial(n, counts / n, size=draws) @ distinct / n
    mean = value.mean()
    return mean + (sample - mean) * np.sqrt(n / (n - 1))


def _resampled_singles(
    value: NDArray[np.float64], draws: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draws x classes, for classes of one image: alone it shows no spread, so it takes that of them all."""
    m = len(value)
    errors = (value - value.mean()) * np.sqrt(m / (m - 1))
    return value + errors[rng.integers(m, size=(draws, m))]


def weightings(n: NDArray[np.int64], groups: Mapping[str, list[int]]) -> dict[str, NDArray[np.float64]]:
    """How each statistic weighs the class accuracies: overall by images, a group by classes."""
    table = {"overall": n / n.sum(), "mean_per_class": (n > 0) / (n > 0).sum()}
    for name, members in groups.items():
        weight = np.zeros(len(n))
        weight[[k for k in members if n[k] > 0]] = 1
        table[name] = weight / max(weight.sum(), 1)
    return table


def estimate(drawn: Draws, weight: NDArray[np.float64]) -> Estimate | None:
    """Mean, percentile interval and p-value of one weighting; None when it weighs no class."""
    used = weight > 0
    if not used.any():
        return None
    w = weight[used]
    by_seed = drawn.by_seed[:, used] @ w
    mean, seeds, draws = float(by_seed.mean()), len(by_seed), len(drawn.images)
    rng = np.random.default_rng(drawn.seed)

    error = drawn.images[:, used] @ w - mean
    within = float(error.var())
    between = _between_seeds(by_seed)
    if between > 0:
        kept = max(0.0, 1 - float(drawn.interaction[used] @ w**2) / within) if within > 0 else 0.0
        error *= np.sqrt(kept)
        error += np.sqrt(between) * rng.permutation(_normal_levels(draws))
        variance = kept * within + between
    else:
        variance = within
    # Satterthwaite: the degrees of freedom of a sum of variances, never fewer than either has
    strata = int((drawn.n[used] > 1).sum()) + bool((drawn.n[used] == 1).any())  # single images are one
    of_images, of_seeds = max(int(drawn.n[used].sum()) - strata, 1), max(seeds - 1, 1)
    doubt = within**2 / of_images + between**2 / of_seeds
    freedom = max(variance**2 / doubt, min(of_images, of_seeds)) if doubt > 0 else np.inf
    sample = mean + error / np.sqrt(_misjudged(freedom, draws, rng))
    half_step = 0.5 * float((w / drawn.n[used]).max()) / seeds if variance > 0 else 0.0
    low, high = np.percentile(sample, [100 * LEVEL / 2, 100 * (1 - LEVEL / 2)])
    distance = (abs(mean) - half_step) / np.sqrt(variance) if variance > 0 else 0.0
    p = _p_value(sample * np.sign(mean) - half_step, distance, freedom)
    return Estimate(mean, (float(low) - half_step, float(high) + half_step), p)


def without_spread(drawn: Draws, weight: NDArray[np.float64]) -> Estimate:
    """A gain where all images of a class changed alike, so that resampling shows no spread at all.

    The test is the sign test of the images that changed. A class whose n images all changed is bounded by
    the gain g at which that still happens in 2.5 % of all cases: ((1 + g) / 2)^n.
    """
    used = weight > 0
    w, n, change = weight[used], drawn.n[used], drawn.by_seed[0, used]
    better, worse = (np.array([n[np.sign(change) == s].sum()]) for s in (1, -1))
    mean, least = float(change @ w), float((w * change * (2 * (LEVEL / 2) ** (1 / n) - 1)).sum())
    return Estimate(mean, (min(mean, least), max(mean, least)), float(mcnemar(better, worse)[0]))


def _between_seeds(by_seed: NDArray[np.float64]) -> float:
    """The variance that seeds give to their mean, unbiased on the scale of logarithms; 0 for one seed."""
    from scipy.special import digamma

    half = (len(by_seed) - 1) / 2
    if half == 0:
        return 0.0
    too_small = np.exp(digamma(half)) / half  # the geometric mean of chi^2 / freedom
    return float(by_seed.var(ddof=1) / len(by_seed) / too_small)


def _misjudged(freedom: float, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How far a variance of so many degrees of freedom may be off: a normal over its root is Student's t."""
    if freedom > MANY:
        return np.ones(draws)
    return _chi2_levels(float(f"{freedom:.2g}"), draws)[rng.permutation(draws)]


@lru_cache(maxsize=512)  # freedoms of two digits: few are different, so that every class can have its own
def _chi2_levels(freedom: float, draws: int) -> NDArray[np.float64]:
    """Quantiles of chi^2 / freedom in the middle of `draws` equal cells: tails free of chance."""
    from scipy.special import chdtri

    return chdtri(freedom, (np.arange(draws) + 0.5) / draws) / freedom


@lru_cache(maxsize=4)
def _normal_levels(draws: int) -> NDArray[np.float64]:
    from scipy.special import ndtri

    return ndtri((np.arange(draws) + 0.5) / draws)


def _p_value(sample: NDArray[np.float64], distance: float, freedom: float) -> float:
    """Two-sided, from the draws turned to the positive side; where they are too few, from Student's t.

    `distance` is the mean in standard errors. Without the second step no p-value could fall below 1/B, and
    Holm's correction of a large table would find nothing.
    """
    tail = int((sample <= 0).sum())
    p = min(1.0, 2 * (tail + 1) / (len(sample) + 1))
    if tail >= RESOLVED:
        return p
    from scipy.special import ndtr, stdtr

    return min(p, 2 * float(ndtr(-distance) if np.isinf(freedom) else stdtr(freedom, -distance)))


def holm(p: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's adjusted p-values: call those below 0.05, and the chance of any false call is below 5 %."""
    raw = np.asarray(p, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    steps = raw[order] * np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def mcnemar(better: NDArray[np.int64], worse: NDArray[np.int64]) -> NDArray[np.float64]:
    """Exact two-sided McNemar p-values: are the images mended and lost a fair coin's work?

    With several seeds an image counts once, for the method that got it right more often.
    """
    from scipy.special import bdtr

    discordant = better + worse
    p = 2 * bdtr(np.minimum(better, worse), np.maximum(discordant, 1), 0.5)
    return np.where(discordant == 0, 1.0, np.minimum(p, 1.0))
