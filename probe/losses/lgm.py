"""LGM: each class a Gaussian in feature space, with a margin on the true distance (Wan et al. 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.core import collectives
from probe.core.class_stats import ClassStats
from probe.core.shards import like
from probe.losses.base import ClassInfo, Loss
from probe.losses.spec import NeededStats


class LGM(Loss):
    """CE of logits -d_k (1 + alpha [k = y]) - log|Sigma_k|/2, plus lam mean(d_y + log|Sigma_y|/2), where

        d_k = (h - mu_k)^T Sigma_k^-1 (h - mu_k) / 2.

    It owns the classifier (centres and, with `diagonal`, log-variances): give `loss.parameters()` to the
    optimiser and classify by `scores`. Centres start at the class means where `stats` hold them, or a
    training gives them (`prepare`), else at 0. Without `dim` the parameters take their size from the first
    batch. With `ramp` alpha and lam grow over that part of a training: both pull features to centres that
    are nowhere yet.
    """

    centres: Tensor
    log_variance: Tensor | None

    def __init__(
        self,
        classes: ClassInfo,
        *,
        alpha: float = 0.1,
        lam: float = 0.01,
        diagonal: bool = False,
        dim: int | None = None,
        ramp: float = 0.0,
    ) -> None:
        super().__init__(classes)
        self.alpha, self.lam = alpha, lam
        self.ramp, self.ramps = ramp, ramp > 0
        means = None if classes.stats is None else classes.stats.mean
        self.centres = nn.parameter.UninitializedParameter()
        self.log_variance = nn.parameter.UninitializedParameter() if diagonal else None
        size = dim if means is None else means.shape[1]
        if size is not None:
            self._materialise(size, torch.get_default_dtype())
        if means is not None:
            with torch.no_grad():
                self.centres.copy_(means)
        self.placed = means is not None

    def wanted_stats(self) -> NeededStats | None:
        return None if self.placed else NeededStats(scaled=True)

    @torch.no_grad()
    def prepare(self, stats: ClassStats) -> None:
        """Put the centres at the class means; a class without samples at the mean of the others."""
        assert stats.mean is not None
        known = stats.count.to(stats.mean) > 0
        means = torch.where(known.unsqueeze(1), stats.mean, stats.mean[known].mean(0))
        self._materialise(means.shape[1], torch.get_default_dtype())
        self.centres.copy_(like(self.centres, means))

    @torch.no_grad()
    def _materialise(self, dim: int, dtype: torch.dtype) -> None:
        for parameter in (self.centres, self.log_variance):
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                parameter.materialize((self.num_classes, dim), dtype=dtype)
                parameter.zero_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + "centres")
        if isinstance(saved, Tensor) and not nn.parameter.is_lazy(saved):
            self._materialise(saved.shape[1], saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def distances(self, features: Tensor) -> Tensor:
        """d_k for every sample and class: N x K."""
        centres = self.centres.to(features.dtype)
        origin = centres.detach().mean(
            0
        )  # subtracted from both: no distance changes, and the squares keep their digits
        h, mu = features - origin, centres - origin
        if self.log_variance is None:
            squares = h.square().sum(1, keepdim=True) + mu.square().sum(1) - 2 * h @ mu.T
        else:
            precision = (-self.log_variance.to(features.dtype)).exp()
            cross = h @ (mu * precision).T
            squares = h.square() @ precision.T + (mu.square() * precision).sum(1) - 2 * cross
        return squares.clamp(min=0) / 2

    def half_log_det(self, like: Tensor) -> Tensor:
        """log|Sigma_k| / 2: K."""
        if self.log_variance is None:
            return like.new_zeros(self.num_classes)
        return self.log_variance.to(like.dtype).sum(1) / 2

    def scores(self, features: Tensor) -> Tensor:
        """Logits for prediction: no margin."""
        return -self.distances(features) - self.half_log_det(features)

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        features = self._required(features)
        self._materialise(features.shape[1], features.dtype)
        distances, log_det = self.distances(features), self.half_log_det(features)
        true = F.one_hot(targets, self.num_classes).to(features)
        margin = 1 + self.strength * self.alpha * true
        losses = F.cross_entropy(-distances * margin - log_det, targets, reduction="none")
        likelihood = distances.gather(1, targets.unsqueeze(1)).squeeze(1) + log_det[targets]
        return collectives.mean(losses + self.strength * self.lam * likelihood)
