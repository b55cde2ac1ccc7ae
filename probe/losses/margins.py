"""Margins in logits and in representation: MR² (scale-free, the paper's, the authors' builds) and ELM."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core import collectives, theory
from probe.core.adjustment import ClassAdjustment
from probe.core.class_stats import ClassStats, Groups, RunningStats
from probe.errors import UserError
from probe.losses.adjusted import LogitAdjustment
from probe.losses.base import ClassInfo, FitContext, Loss, Margins
from probe.losses.feature_scale import FeatureScale, RangeWatch
from probe.losses.margin_history import MarginHistory
from probe.losses.same_class_pairs import Partners, above_rounding, pull, total_variance
from probe.losses.spec import NeededStats

TOGETHER = 2  # images of a class in a batch that a pull between them asks for: more leave out other classes
EQUAL = {  # what to say where all margins are equal, by statistic
    "spread": "all margins are equal, so its logit term is cross-entropy with one temperature",
    "moment": "all margins are equal (unit-norm features with p = 2 always give that), so its logit term is "
    "cross-entropy with one temperature; use raw features or another p",
}


class MR2(Loss):
    """mean( CE(z / gamma_y) + lam * ln(1 + mean_{same class} exp(|h - h'|^2 / (2 sbar) - 1)) )

    The margins of Zhu et al. (2026), free of the features' scale. gamma_k is proportional to t_k^power, with
    mean c; t is the spread |s_k|^2 of the classes, or the second moment |mu_k|^2 + |s_k|^2, and sbar is the
    mean spread. Both come from running class statistics (constants), or exact ones, given as `stats`. With
    `scale: total` the batch's total variance, with its gradient, takes the place of sbar; with `scale: none`
    the second term is the paper's, ln(1 + sum exp(|h - h'|^2 - 2 sbar)).

    `cap` is the largest margin over the mean one; `shrink` moves t_k towards the mean over classes, as that
    many images would; `robust` holds back what a batch can do to the statistics of a class.

    Classes that no batch has shown yet have margin 1, those whose statistic is 0 (of a single sample) the
    mean one, and neither moves the others. A sample without a partner in the batch has no second term.
    Statistics move before they are used, in training mode only. `features` may be left out where the
    statistics are exact: the representation term is a constant on frozen features.
    """

    uses_partners = True
    takes_class_weights = True  # of its logit term
    tolerance = 1e-4  # margins closer than this, relatively, do not change a result
    starts_from_pass = True  # do running statistics start from those of the whole training set?
    way_out = "use scale=spread"

    def __init__(
        self,
        classes: ClassInfo,
        *,
        c: float = 1.0,
        lam: float = 0.5,
        ema: float = 0.9,
        p: float = 2.0,
        scale: str = "spread",
        statistic: str = "spread",
        power: float = 1 / 3,
        robust: bool = False,
        cap: float | None = None,
        shrink: float = 0.0,
        average: str = "norms",
    ) -> None:
        super().__init__(classes)
        self.c, self.lam, self.scale, self.statistic = c, lam, scale, statistic
        self.power, self.cap, self.shrink = power, cap, shrink
        self.degenerate_remark = EQUAL[statistic]
        if shrink > 0 and classes.counts is None:
            raise UserError(f"{self.name}: shrink needs the class sizes: give class_counts or stats")
        self.register_buffer("counts", classes.counts, persistent=False)
        self.stats = RunningStats(classes.num_classes, ema=ema, p=p, kind=average, robust=robust)
        self.exact = classes.stats is not None
        self.history = MarginHistory(classes.num_classes)
        self.ramps, self.together = scale != "none", 1 if scale == "none" else TOGETHER
        self.watch = RangeWatch(self.name, self.way_out) if scale == "none" else None
        if classes.stats is not None:
            self.stats.start(classes.stats)

    counts: Tensor | None

    def wanted_stats(self) -> NeededStats | None:
        if self.exact or not self.starts_from_pass:
            return None
        return NeededStats(p=self.stats.p, robust=self.stats.robust)

    def prepare(self, stats: ClassStats) -> None:
        self.stats.start(stats)

    @property
    def mean_norm(self) -> Tensor:
        """|mu_k|^2, K numbers."""
        return self.stats.mean_norm2

    @property
    def spread(self) -> Tensor:
        """|s_k|^2, K numbers."""
        return self.stats.spread2

    @property
    def gamma(self) -> Tensor:
        """The K margins; 1 for a class that has not been seen."""
        seen = self.stats.seen
        t = self.spread if self.statistic == "spread" else self.mean_norm + self.spread
        t = self._shrunk(torch.where(seen, t, 0))
        # A statistic of zero (a single sample has no spread) says nothing, and margin 0 would divide by zero.
        known = seen & ((t > 0) | (self.power == 0))
        margins = theory.margins(t, power=self.power, mean_margin=self.c, cap=self.cap, among=known)
        return torch.where(seen, torch.where(known, margins, self.c), 1)

    def _shrunk(self, t: Tensor) -> Tensor:
        """(n_k t_k + shrink * mean t) / (n_k + shrink), the mean over the classes seen."""
        if self.shrink == 0 or self.counts is None:
            return t
        counts, mean = self.counts.to(t), t.sum() / self.stats.seen.sum().clamp(min=1)
        return (counts * t + self.shrink * mean) / (counts + self.shrink)

    @property
    def mean_spread(self) -> Tensor:
        """sbar, over the classes seen so far."""
        return self.stats.mean_spread

    def margins(self) -> Margins:
        return Margins(self.gamma, self.mean_norm, self.spread, self.history.snapshots())

    def remarks(self, context: FitContext) -> list[str]:
        said = super().remarks(context)
        if context.exact:
            said.append(
                "features are frozen, so MR²'s representation term has no effect; its logit margin acts"
            )
        elif self.watch is not None and self.watch.remark is not None:
            said.append(self.watch.remark)
        return said

    def adjustment(self) -> ClassAdjustment:
        if not bool(self.stats.seen.any()):
            raise UserError(f"{self.name} has no class statistics yet: give stats=..., or train a step first")
        return ClassAdjustment(scale=1 / self.gamma)

    @property
    def degenerate(self) -> bool:
        known = self.gamma[self.stats.seen]
        return len(known) > 1 and float(known.max() - known.min()) <= self.tolerance * float(known.mean())

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        if features is None and not self.exact and self.training:
            self._required(features)
        if features is None:
            return self._logit_term(logits, targets)
        features, everyone = collectives.gather(features, targets)
        partners = Partners.of(Groups.of(everyone))
        distances = partners.squared_distances(features)
        if self.training and not self.exact:
            pairs = partners.groups.sums(partners.sums(distances)) / 2
            self.stats.update(partners.groups, features.detach(), pairs)
            self.history.add(self.gamma)
        if self.training and self.watch is not None:
            self.watch.look(partners, distances, 2 * self.mean_spread)
        loss = self._logit_term(logits, targets)
        if self.lam * self.strength == 0:
            return loss
        return loss + self.lam * self.strength * self._representation_term(features, distances, partners)

    def _logit_term(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.weighted_mean(*ClassAdjustment(scale=1 / self.gamma).losses(logits, targets), targets)

    def _representation_term(self, features: Tensor, distances: Tensor, partners: Partners) -> Tensor:
        if self.scale == "none":
            return pull(features, distances, partners, 2 * self.mean_spread).mean()
        variance = total_variance(features) if self.scale == "total" else self.mean_spread
        unit = above_rounding(2 * variance, features)
        return pull(features, distances, partners, 1.0, temperature=unit, mean=True).mean()


class PaperMR2(MR2):
    """mean( CE(z / gamma_y) + lam * ln(1 + sum_{same class} exp(|h - h'|^2 - 2 sbar)) )   (Zhu et al. 2026)

    gamma is Corollary 1, proportional to (|mu_k|^2 + |s_k|^2)^(1/3). Statistics start from the first batches.
    """

    starts_from_pass = False
    way_out = "mr2 takes them in units of the spread"

    def __init__(
        self,
        classes: ClassInfo,
        *,
        c: float = 1.0,
        lam: float = 0.1,
        ema: float = 0.9,
        p: float = 2.0,
        average: str = "norms",
    ) -> None:
        super().__init__(
            classes, c=c, lam=lam, ema=ema, p=p, scale="none", statistic="moment", average=average
        )


class ReleasedMR2(PaperMR2):
    """The released ImageNet code's form, where it differs from the paper:

    statistics in the 5-norm; the exponent divided by 10 D; the term averaged within each class that has at
    least two samples in the batch, summed over classes and multiplied by D / (10 K); classes not seen yet
    count as zero in the sums over classes, so the others' margins start too large.
    """

    outside = 0.1  # D / K times this multiplies the term

    def __init__(self, classes: ClassInfo, *, lam: float = 0.1, ema: float = 0.999, p: float = 5.0) -> None:
        super().__init__(classes, lam=lam, ema=ema, p=p)
        self.watch = None  # 10 D is a scale of its own

    @property
    def gamma(self) -> Tensor:
        margins = theory.optimal_margins(self.mean_norm + self.spread)
        return torch.where(margins > 0, margins, 1)

    @property
    def mean_spread(self) -> Tensor:
        return self.spread.mean()

    def _representation_term(self, features: Tensor, distances: Tensor, partners: Partners) -> Tensor:
        size = features.shape[1]
        alpha = 2 * self.mean_spread / (10 * size)
        omega = pull(features, distances, partners, alpha, temperature=10 * size)
        return partners.groups.means(omega).sum() * (self.outside * size / self.num_classes)


class EarlyMR2(ReleasedMR2):
    """The authors' earlier build: the released form with 2-norms and D / K outside, ten times its pull."""

    outside = 1.0

    def __init__(self, classes: ClassInfo, *, lam: float = 0.1, ema: float = 0.9) -> None:
        super().__init__(classes, lam=lam, ema=ema, p=2.0)


class ELM(LogitAdjustment):
    """mean( LA(z) + lam * ln(1 + sum_{same class} exp(|h - h'|^2 - alpha_y)) )   (Jitkrittum et al. 2022)

    alpha_y grows with the class's frequency, so rare classes are pulled together more tightly. With
    `scale: spread` the squared distances are divided by 2 sbar, and alpha is in that unit.
    """

    degenerate_remark = "all classes have one size, so its logit term is cross-entropy"

    sample_mean = False  # a sample's pull depends on the others of its class
    uses_partners = True
    alpha: Tensor

    def __init__(
        self,
        classes: ClassInfo,
        *,
        lam: float = 0.01,
        alpha: str = "count",
        alpha_scale: float = 1.0,
        tau: float = 1.0,
        scale: str = "none",
    ) -> None:
        super().__init__(classes, tau=tau)
        size = classes.prior if alpha.endswith("prior") else classes.required_counts
        margin = alpha_scale * (size.sqrt() if alpha.startswith("sqrt") else size)
        self.lam = lam
        self.unit = FeatureScale(classes, scale)
        self.ramps, self.together = self.unit.free, TOGETHER if self.unit.free else 1
        self.register_buffer("alpha", margin, persistent=False)

    def wanted_stats(self) -> NeededStats | None:
        return self.unit.wanted_stats

    def prepare(self, stats: ClassStats) -> None:
        self.unit.start(stats)

    def remarks(self, context: FitContext) -> list[str]:
        return [*super().remarks(context), *self.unit.remarks]

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        loss = super().compute(logits, targets, None)
        features, everyone = collectives.gather(self._required(features), targets)
        partners = Partners.of(Groups.of(everyone))
        alpha = self.alpha.to(features)[everyone]
        if self.training:
            self.unit.look(features, partners.groups, alpha)
        unit = self.unit.unit(features, partners.groups, move=self.training)
        distances = partners.squared_distances(features)
        omega = pull(features, distances, partners, alpha, temperature=unit)
        return loss + self.lam * self.strength * omega.mean()
