"""Margins in logits and in representation: MR² (paper and released form) and ELM."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.class_stats import Groups, RunningStats
from probe.core.theory import optimal_margins
from probe.errors import UserError
from probe.losses.adjusted import LogitAdjustment
from probe.losses.base import ClassInfo, FitContext, Loss, Margins
from probe.losses.margin_history import MarginHistory
from probe.losses.same_class_pairs import Partners, pull


class MR2(Loss):
    """mean( CE(z / gamma_y) + lam * ln(1 + sum_{same class} exp(|h - h'|^2 - 2 sbar)) )   (Zhu et al. 2026)

    gamma is Corollary 1 for the running class statistics (or exact ones, given as `stats`); sbar is the mean
    spread of the classes. Classes that no batch has shown yet have margin 1 and do not move the others.
    Statistics move before they are used, in training mode only. `features` may be left out where the
    statistics are exact: the representation term is a constant on frozen features.
    """

    degenerate_remark = (
        "all margins are equal (unit-norm features with p = 2 always give that), so its logit term is "
        "cross-entropy with one temperature; use raw features or another p"
    )
    tolerance = 1e-4  # margins closer than this, relatively, do not change a result

    def __init__(
        self,
        classes: ClassInfo,
        *,
        c: float = 1.0,
        lam: float = 0.1,
        ema: float = 0.9,
        p: float = 2.0,
        statistics: str = "norms",
    ) -> None:
        super().__init__(classes)
        self.c, self.lam = c, lam
        self.stats = RunningStats(classes.num_classes, ema=ema, p=p, kind=statistics)
        self.exact = classes.stats is not None
        self.history = MarginHistory(classes.num_classes)
        if classes.stats is not None:
            self.stats.fix(classes.stats)

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
        moments = torch.where(seen, self.mean_norm + self.spread, 0)
        margins = optimal_margins(moments, mean_margin=self.c) * seen.to(moments).mean()
        # A seen class whose features are all zero would get margin 0, which divides by zero.
        return torch.where(seen & (margins > 0), margins, 1)

    @property
    def mean_spread(self) -> Tensor:
        """sbar, over the classes seen so far."""
        return self.spread.sum() / self.stats.seen.sum().clamp(min=1)

    def margins(self) -> Margins:
        return Margins(self.gamma, self.mean_norm, self.spread, self.history.snapshots())

    def remarks(self, context: FitContext) -> list[str]:
        said = super().remarks(context)
        if context.exact:
            said.append(
                "features are frozen, so MR²'s representation term has no effect; its logit margin acts"
            )
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
        loss = self._logit_term(logits, targets)
        if self.lam == 0:
            return loss
        margin = 2 * self.mean_spread.to(features.dtype)
        return loss + self.lam * self._representation_term(features, distances, partners, margin)

    def _logit_term(self, logits: Tensor, targets: Tensor) -> Tensor:
        return collectives.mean(*ClassAdjustment(scale=1 / self.gamma).losses(logits, targets))

    def _representation_term(
        self, features: Tensor, distances: Tensor, partners: Partners, margin: Tensor
    ) -> Tensor:
        return pull(features, distances, partners, margin).mean()


class ReleasedMR2(MR2):
    """The released ImageNet code's form, where it differs from the paper:

    statistics in the 5-norm; the exponent divided by 10 D; the term averaged within each class that has at
    least two samples in the batch, summed over classes and multiplied by D / (10 K); classes not seen yet
    count as zero in the sums over classes, so the others' margins start too large.
    """

    def __init__(self, classes: ClassInfo, *, lam: float = 0.1, ema: float = 0.999, p: float = 5.0) -> None:
        super().__init__(classes, c=1.0, lam=lam, ema=ema, p=p, statistics="norms")

    @property
    def gamma(self) -> Tensor:
        margins = optimal_margins(self.mean_norm + self.spread)
        return torch.where(margins > 0, margins, 1)

    @property
    def mean_spread(self) -> Tensor:
        return self.spread.mean()

    def _representation_term(
        self, features: Tensor, distances: Tensor, partners: Partners, margin: Tensor
    ) -> Tensor:
        size = features.shape[1]
        omega = pull(features, distances, partners, margin, temperature=10 * size)
        return partners.groups.means(omega).sum() * (size / (10 * self.num_classes))


class ELM(LogitAdjustment):
    """mean( LA(z) + lam * ln(1 + sum_{same class} exp(|h - h'|^2 - alpha_y)) )   (Jitkrittum et al. 2022)

    alpha_y grows with the class's frequency, so rare classes are pulled together more tightly.
    """

    degenerate_remark = "all classes have one size, so its logit term is cross-entropy"

    sample_mean = False  # a sample's pull depends on the others of its class
    alpha: Tensor

    def __init__(
        self,
        classes: ClassInfo,
        *,
        lam: float = 0.01,
        alpha: str = "count",
        alpha_scale: float = 1.0,
        tau: float = 1.0,
    ) -> None:
        super().__init__(classes, tau=tau)
        size = classes.prior if alpha.endswith("prior") else classes.required_counts
        margin = alpha_scale * (size.sqrt() if alpha.startswith("sqrt") else size)
        self.lam = lam
        self.register_buffer("alpha", margin, persistent=False)

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        loss = super().compute(logits, targets, None)
        features, everyone = collectives.gather(self._required(features), targets)
        partners = Partners.of(Groups.of(everyone))
        distances = partners.squared_distances(features)
        return loss + self.lam * pull(features, distances, partners, self.alpha.to(features)[everyone]).mean()
