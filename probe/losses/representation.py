"""Terms on the features, next to cross-entropy: center, spread-out, range, DRO-LT; and SupCon alone.

Each answers one question: what is the term on the joined batch? On several processes features are gathered
with gradients, so that pairs across processes count. Spread-out and SupCon use unit vectors, so the scale of
the features does not matter to them; the others take squared distances as they are, or with `scale` in units
of twice the mean spread or the total variance (`probe.losses.feature_scale`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.core.class_stats import ClassStats, Groups
from probe.core.ema import blend
from probe.losses.base import ClassInfo, FitContext, Loss
from probe.losses.feature_scale import FeatureScale
from probe.losses.spec import NeededStats


class WithTerm(Loss, ABC):
    """CE + lam * term."""

    takes_class_weights = True  # of its cross-entropy

    def __init__(self, classes: ClassInfo, *, lam: float = 1.0) -> None:
        super().__init__(classes)
        self.lam = lam

    @abstractmethod
    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        """The term on the batch of all processes: N x D features, N targets and their groups."""

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        plain = self.weighted_mean(F.cross_entropy(logits, targets, reduction="none"), None, targets)
        features, everyone = collectives.gather(self._required(features), targets)
        return plain + self.lam * self.strength * self.term(features, everyone, Groups.of(everyone))


class WithDistances(WithTerm, ABC):
    """A term of squared distances, in the unit that `scale` says."""

    def __init__(self, classes: ClassInfo, *, lam: float, scale: str, ramp: float = 0.0) -> None:
        super().__init__(classes, lam=lam)
        self.scale = FeatureScale(classes, scale)
        self.ramp, self.ramps = ramp, self.scale.free or ramp > 0

    def wanted_stats(self) -> NeededStats | None:
        return self.scale.wanted_stats

    def prepare(self, stats: ClassStats) -> None:
        self.scale.start(stats)

    def remarks(self, context: FitContext) -> list[str]:
        return [*super().remarks(context), *self.scale.remarks]

    def unit(self, features: Tensor, groups: Groups) -> Tensor:
        """What squared distances of this batch are divided by."""
        if self.training:
            self.scale.look(features, groups)
        return self.scale.unit(features, groups, move=self.training)


class WithCentres(WithDistances, ABC):
    """A term around one point per class (K x D), a buffer that takes its size from the first batch."""

    centres: Tensor
    known: Tensor

    def __init__(self, classes: ClassInfo, *, lam: float, scale: str, ramp: float = 0.0) -> None:
        super().__init__(classes, lam=lam, scale=scale, ramp=ramp)
        means = None if classes.stats is None else classes.stats.mean
        k = classes.num_classes
        self.register_buffer("centres", torch.zeros(k, 0) if means is None else means.clone())
        known = torch.zeros(k, dtype=torch.bool) if classes.stats is None else classes.stats.count > 0
        self.register_buffer("known", known)

    def prepare(self, stats: ClassStats) -> None:
        super().prepare(stats)
        if stats.mean is not None:
            self.centres = stats.mean.to(self.known.device).clone()
            self.known = (stats.count > 0).to(self.known.device)

    def grow(self, features: Tensor) -> None:
        """Size and dtype of this batch's features, at the first one."""
        self.follow(features.dtype)
        if self.centres.shape[1] == 0:
            self.centres = self.centres.new_zeros(self.num_classes, features.shape[1])


class Center(WithCentres):
    """CE + lam/2 mean |h - c_y|^2 (Wen et al. 2016)

    After the loss, in training mode, each centre of the batch moves by the paper's rule,
    c_k <- c_k - alpha sum_{i in k} (c_k - h_i) / (1 + m_k); no optimiser trains it. Centres start at 0.
    With `scale: spread` it is CE + lam mean |h - c_y|^2 / (2 sbar), and centres start at the class means.
    """

    def __init__(
        self, classes: ClassInfo, *, lam: float = 0.003, alpha: float = 0.5, scale: str = "none"
    ) -> None:
        super().__init__(classes, lam=lam, scale=scale)
        self.alpha = alpha

    @torch.no_grad()
    def _begin(self, features: Tensor, groups: Groups) -> None:
        """A class without a centre takes the mean of its first batch; 0 would be far from all of them."""
        k = groups.classes
        known = self.known[k].unsqueeze(1)
        self.centres[k] = torch.where(known, self.centres[k], groups.means(features).to(self.centres))
        self.known[k] = True

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        self.grow(features)
        unit = self.unit(features, groups) if self.scale.free else 2 * self.unit(features, groups)
        if self.scale.free and self.training:
            self._begin(features, groups)
        centres = self.centres.to(features).index_select(0, targets)
        if self.training:
            with torch.no_grad():
                k, size = groups.classes, groups.sizes.to(self.centres)
                gap = groups.sums((centres - features).to(self.centres))
                self.centres = self.centres.index_add(0, k, gap / (1 + size).unsqueeze(1), alpha=-self.alpha)
        return (features - centres).square().sum(1).mean() / unit


class DROLT(WithCentres):
    """CE + lam mean_i log sum_j exp(|h_i - c_y|^2 - |h_j - c_y|^2 + eps_y [y_j != y])   (ELM eq. 5)

    y is the class of i, the sum runs over the batch (i included, so the term is not negative), and eps_y =
    margin / sqrt(pi_y). Prototypes c are constants: means over batches with memory `ema`, moved before use.
    With `scale: spread` the squared distances are divided by 2 sbar, with `total` by twice the batch's total
    variance: in units of sbar the pull grows as features shrink, and they end in one point.
    """

    epsilon: Tensor

    def __init__(
        self,
        classes: ClassInfo,
        *,
        lam: float = 1.0,
        margin: float = 0.1,
        ema: float = 0.9,
        scale: str = "none",
        ramp: float = 0.0,
    ) -> None:
        super().__init__(classes, lam=lam, scale=scale, ramp=ramp)
        self.ema = ema
        self.register_buffer("epsilon", margin * classes.prior.rsqrt(), persistent=False)

    @torch.no_grad()
    def _move(self, features: Tensor, groups: Groups) -> None:
        blend(self.centres, self.known, groups.classes, groups.means(features), self.ema)
        self.known[groups.classes] = True

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        self.grow(features)
        if self.training:
            self._move(features.detach(), groups)
        # C x N squared distances of every sample to the prototypes of the classes present.
        distances = squared_distances(self.centres.to(features)[groups.classes], features)
        distances = distances / self.unit(features, groups)
        other = targets != groups.classes.unsqueeze(1)
        epsilon = self.epsilon.to(features)[groups.classes].unsqueeze(1)
        pushed = torch.logsumexp(epsilon * other - distances, dim=1)
        own = distances.gather(0, groups.index.unsqueeze(0)).squeeze(0)
        return (own + pushed[groups.index]).mean()


class SpreadOut(WithTerm):
    """CE + lam (M1^2 + max(0, M2 - 1/D)) over unit features (Zhang et al. 2017)

    M1 and M2 are the means of the dot product and of its square over ordered pairs of different classes
    (the original's non-matching pairs; pairs of one class need not be spread out).
    """

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        unit = F.normalize(features, dim=1)
        dots = (unit @ unit.T).masked_fill(targets.unsqueeze(0) == targets.unsqueeze(1), 0)
        pairs = (len(targets) ** 2 - groups.sizes.square().sum()).clamp(min=1)
        first, second = dots.sum() / pairs, dots.square().sum() / pairs
        return first.square() + (second - 1 / features.shape[1]).clamp(min=0)


class Range(WithDistances):
    """CE + lam (alpha sum_k H_k + beta max(0, margin - smallest squared distance of class means))

    H_k is the harmonic mean of the k largest squared distances within class k (Zhang et al. 2017); a class
    with fewer pairs uses those it has. Coincident samples count as a distance of almost 0, with finite slope.
    With `scale: spread` all squared distances are divided by 2 sbar, and `margin` is in that unit; with
    `total` by twice the batch's total variance, and the mean of H_k over the batch's classes takes the place
    of the sum, which grows with their number.
    """

    uses_partners = True

    def __init__(
        self,
        classes: ClassInfo,
        *,
        lam: float = 1.0,
        k: int = 2,
        alpha: float = 0.5,
        beta: float = 0.5,
        margin: float = 5.0,
        scale: str = "none",
        ramp: float = 0.0,
    ) -> None:
        super().__init__(classes, lam=lam, scale=scale, ramp=ramp)
        self.together = 4 if self.scale.free else 1
        self.k, self.alpha, self.beta, self.margin = int(k), alpha, beta, margin

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        scaled = features * self.unit(features, groups).rsqrt()
        share = len(groups.sizes) if self.scale.total else 1
        return self.alpha / share * self.within(scaled, groups) + self.beta * self.between(scaled, groups)

    def within(self, features: Tensor, groups: Groups) -> Tensor:
        """sum_k H_k."""
        with torch.no_grad():
            i, j, block = self._largest(features, groups)
        distances = (features[i] - features[j]).square().sum(1)
        floor = torch.finfo(distances.dtype).eps
        inverse = 1 / distances.clamp(min=floor)
        sums = features.new_zeros(len(groups.sizes)).index_add(0, block, inverse)
        count = torch.zeros_like(sums).index_add(0, block, torch.ones_like(inverse))
        return torch.where(count > 0, count / torch.where(count > 0, sums, 1), 0).sum()

    def _largest(self, features: Tensor, groups: Groups) -> tuple[Tensor, Tensor, Tensor]:
        """The k most distant pairs of each class: rows i, j and which class. Ranked by sorting pairs by
        distance, then stably by class."""
        centred = groups.centred(features, groups.means(features))
        same = groups.index.unsqueeze(0) == groups.index.unsqueeze(1)
        i, j = same.triu(1).nonzero().unbind(1)
        distance = squared_distances(centred, centred)[i, j]
        order = torch.argsort(distance, descending=True)
        order = order[torch.argsort(groups.index[i[order]], stable=True)]
        block = groups.index[i[order]]
        pairs = torch.bincount(block, minlength=len(groups.sizes))
        rank = torch.arange(len(block), device=block.device) - (pairs.cumsum(0) - pairs)[block]
        kept = order[rank < self.k]
        return i[kept], j[kept], groups.index[i[kept]]

    def between(self, features: Tensor, groups: Groups) -> Tensor:
        """How far the two closest class means of the batch fall short of `margin`; 0 for a single class."""
        means = groups.means(features)
        if len(means) < 2:
            return features.new_zeros(())
        with torch.no_grad():
            distances = squared_distances(means, means).fill_diagonal_(torch.inf)
            nearest = distances.argmin()
        a, b = means[nearest // len(means)], means[nearest % len(means)]
        return (self.margin - (a - b).square().sum()).clamp(min=0)


class SupCon(Loss):
    """-(T/T0) mean over positives of [ s_ab/T - logsumexp_{c != a} s_ac/T ], mean over anchors

    On unit features (Khosla et al. 2020); the logits are ignored. An anchor without a positive contributes 0
    and still counts, as in the released code. Give the rows of several views together, labels repeated.
    """

    uses_partners = True

    def __init__(
        self, classes: ClassInfo, *, temperature: float = 0.1, base_temperature: float = 0.07
    ) -> None:
        super().__init__(classes)
        self.temperature, self.base_temperature = temperature, base_temperature

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        features, targets = collectives.gather(self._required(features), targets)
        unit = F.normalize(features, dim=1)
        itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
        similarity = (unit @ unit.T / self.temperature).masked_fill(itself, -torch.inf)
        positive = (targets.unsqueeze(0) == targets.unsqueeze(1)) & ~itself
        if len(targets) == 1:  # the sum over the others is empty
            return 0 * features.sum()
        log_p = similarity - torch.logsumexp(similarity, dim=1, keepdim=True)
        mean = torch.where(positive, log_p, 0).sum(1) / positive.sum(1).clamp(min=1)
        return -(self.temperature / self.base_temperature) * mean.mean()


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 for all pairs of rows, N x M.

    Both are moved to x's mean first, so that the Gram form keeps its digits.
    """
    origin = x.detach().mean(0)
    x, y = x - origin, y - origin
    return (x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * x @ y.T).clamp(min=0)
