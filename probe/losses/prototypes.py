"""DRO-LT as its authors released it: Euclidean distances to constant prototypes, with learned margins."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probe.core.class_stats import ClassStats, Groups
from probe.losses.base import ClassInfo
from probe.losses.functional import dro_lt_released
from probe.losses.representation import WithTerm
from probe.losses.spec import NeededStats


class ReleasedDROLT(WithTerm):
    """CE + lam * `functional.dro_lt_released` (Samuel and Chechik 2021)

    The margins are K trained parameters that start at 1. Prototypes are constants within an epoch: class
    means of the training set before the first step, then those of the epoch before (the release makes a
    pass for them). Where neither is known, a class's first batch gives its prototype.
    """

    uses_partners = True
    together = 4  # the release draws four images of a class together
    ramps = True

    prototypes: Tensor  # K x D
    known: Tensor
    sums: Tensor  # K x D: of the features of this epoch
    counts: Tensor
    epoch: Tensor  # that the sums belong to

    def __init__(self, classes: ClassInfo, *, lam: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__(classes, lam=lam)
        self.temperature = temperature
        k = classes.num_classes
        self.epsilon = nn.Parameter(torch.ones(k))
        self.register_buffer("prototypes", torch.zeros(k, 0))
        self.register_buffer("known", torch.zeros(k, dtype=torch.bool))
        self.register_buffer("sums", torch.zeros(k, 0))
        self.register_buffer("counts", torch.zeros(k))
        self.register_buffer("epoch", torch.tensor(-1))
        if classes.stats is not None:
            self.prepare(classes.stats)

    def wanted_stats(self) -> NeededStats | None:
        return NeededStats()

    def prepare(self, stats: ClassStats) -> None:
        if stats.mean is not None:
            self.prototypes = stats.mean.to(self.known.device).clone()
            self.known = (stats.count > 0).to(self.known.device)
            self.sums, self.counts = torch.zeros_like(self.prototypes), torch.zeros_like(self.counts)

    @torch.no_grad()
    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Prototypes become the means of the epoch before; a resumed epoch goes on as it was."""
        seen = self.counts > 0
        if epoch != int(self.epoch) and bool(seen.any()):
            means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
            self.prototypes = torch.where(seen.unsqueeze(1), means, self.prototypes)
            self.known = self.known | seen
            self.sums, self.counts = torch.zeros_like(self.sums), torch.zeros_like(self.counts)
        self.epoch = torch.full_like(self.epoch, epoch)

    @torch.no_grad()
    def _see(self, features: Tensor, groups: Groups) -> None:
        """Add a batch to the epoch's sums; its means stand for classes without a prototype."""
        self.follow(features.dtype)
        if self.prototypes.shape[1] == 0:
            self.prototypes = self.prototypes.new_zeros(self.num_classes, features.shape[1])
        if self.sums.shape != self.prototypes.shape:
            self.sums = torch.zeros_like(self.prototypes)
        k, sums = groups.classes, groups.sums(features).to(self.sums)
        self.sums = self.sums.index_add(0, k, sums)
        self.counts = self.counts.index_add(0, k, groups.sizes.to(self.counts))
        means = sums / groups.sizes.unsqueeze(1)
        self.prototypes = self.prototypes.index_copy(
            0, k, torch.where(self.known[k].unsqueeze(1), self.prototypes[k], means.to(self.prototypes))
        )
        self.known = self.known.index_fill(0, k, True)

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        if self.training:
            self._see(features.detach(), groups)
        elif self.prototypes.shape[1] == 0:  # evaluated before it has seen a batch
            return 0 * features.sum()
        return dro_lt_released(
            features,
            targets,
            self.prototypes.to(features),
            self.epsilon.to(features),
            temperature=self.temperature,
        )
