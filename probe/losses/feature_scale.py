"""What squared distances between features are measured in, and a look at those that are taken as they are.

Raw squared distances differ by orders of magnitude between backbones, and formulas that hold a constant
beside them (a margin, an exponential) act on one scale only. `scale: spread` divides them by twice the mean
spread of the classes, the mean squared distance of two samples of one class; `total` by twice the batch's
total variance, with its gradient, so that shrinking all features gains nothing; `none` is the papers'
formula.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from probe.core.class_stats import ClassStats, Groups, RunningStats, StatisticsModule
from probe.losses.base import ClassInfo
from probe.losses.same_class_pairs import Partners, above_rounding, total_variance
from probe.losses.spec import NeededStats

log = logging.getLogger("probe.losses")

RANGE = 5.0  # median |d^2 - 2 sbar| up to which a formula on raw distances acts as it was meant to


class RangeWatch(StatisticsModule):
    """How far same-class distances are from the margin beside them, in the first batch that has pairs.

    It is kept in a buffer, so that a resumed training still knows, and is said once.
    """

    excess: Tensor  # median |d^2 - margin|; -1: not looked yet

    def __init__(self, name: str, way_out: str) -> None:
        super().__init__()
        self.name, self.way_out, self.said = name, way_out, False
        self.register_buffer("excess", torch.tensor(-1.0))

    @property
    def looking(self) -> bool:
        """Has no pair been seen yet?"""
        return float(self.excess) < 0

    @torch.no_grad()
    def look(self, partners: Partners, distances: Tensor, margin: Tensor) -> None:
        """T squared distances of a batch's same-class pairs, and the margin: one number, or one per row."""
        pairs = partners.row != partners.partner
        if torch.compiler.is_compiling() or not self.looking or not bool(pairs.any()):
            return
        gaps = distances - margin.to(distances).expand(len(partners.starts))[partners.row]
        self.excess = torch.full_like(self.excess, float(gaps[pairs].abs().median()))
        if self.remark is not None and not self.said:
            self.said = True
            log.warning(self.remark)

    @property
    def remark(self) -> str | None:
        """One line for reports, where the distances are out of the formula's range."""
        if float(self.excess) <= RANGE:
            return None
        return (
            f"{self.name}: its term takes squared distances as they are, and here they are out of its range: "
            f"the median |d² − 2 s̄| was {float(self.excess):.4g} at the first step, and up to {RANGE:g} is "
            f"fine; {self.way_out}"
        )


class FeatureScale(StatisticsModule):
    """The unit of squared distances of a term with a parameter `scale`: 1, twice the mean spread, or twice
    the batch's total variance."""

    def __init__(self, classes: ClassInfo, scale: str) -> None:
        super().__init__()
        self.free, self.total = scale != "none", scale == "total"
        self.stats = RunningStats(classes.num_classes, robust=True) if scale == "spread" else None
        self.watch = None if self.free else RangeWatch(classes.spec.name, "use scale=spread, and another lam")
        if classes.stats is not None and classes.stats.p == 2:
            self.start(classes.stats)

    @property
    def wanted_stats(self) -> NeededStats | None:
        """See `Loss.wanted_stats`."""
        return None if self.stats is None else NeededStats(robust=True)

    def start(self, stats: ClassStats) -> None:
        """Begin with the statistics of the training set."""
        if self.stats is not None:
            self.stats.start(stats)

    def unit(self, features: Tensor, groups: Groups, *, move: bool) -> Tensor:
        """The unit for this batch (a constant, but for `total`); `move`: take its statistics in first."""
        if self.total:
            return above_rounding(2 * total_variance(features), features)
        if self.stats is None:
            return features.new_ones(())
        if move:
            self.stats.update(groups, features.detach())
        return above_rounding(2 * self.stats.mean_spread, features)

    def look(self, features: Tensor, groups: Groups, margin: Tensor | None = None) -> None:
        """See whether raw distances are in range; without a margin, of twice the batch's mean spread."""
        if self.watch is None or torch.compiler.is_compiling() or not self.watch.looking:
            return
        partners = Partners.of(groups)
        distances = partners.squared_distances(features)
        if margin is None:
            centred = groups.centred(features.detach(), groups.means(features.detach()))
            margin = 2 * groups.means(centred.square().sum(1)).mean()
        self.watch.look(partners, distances, margin)

    @property
    def remarks(self) -> list[str]:
        """What a report must say about the distances."""
        said = None if self.watch is None else self.watch.remark
        return [] if said is None else [said]
