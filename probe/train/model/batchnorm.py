"""Batch-norm that does not depend on how a batch is split between processes: joined statistics, or frozen.

torch's own synchronised batch-norm exists for GPUs only; this one is two sums over processes, on any device,
so the joined batch on several processes is normalised exactly as on one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from probe.core import collectives


class _Joined:
    """Mixed into a batch-norm class: training statistics are those of all processes."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training or collectives.processes() == 1:
            return super().forward(x)  # type: ignore[misc]
        with torch.autocast(x.device.type, enabled=False):
            y = self._normalised(x.float()).to(x.dtype)
        # timm's batch-norms carry their activation.
        return self.act(self.drop(y)) if hasattr(self, "act") else y

    def _normalised(self: Any, x: Tensor) -> Tensor:
        over = [0, *range(2, x.ndim)]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        n = collectives.total(x.new_tensor(x.numel() / x.shape[1]))
        mean = collectives.total(x.sum(over)) / n
        centred = x - mean.view(shape)
        variance = collectives.total(centred.square().sum(over)) / n
        self._remember(mean.detach(), variance.detach() * n / (n - 1))
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)

    def _remember(self: Any, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), rate)
        self.running_var.lerp_(variance.to(self.running_var), rate)


def join(model: nn.Module) -> None:
    """Make every batch-norm of `model` use joined statistics; identical on one process."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Joined):
            own = type(module)
            # Under its own name: a model's printed structure is part of its fingerprint.
            module.__class__ = type(own.__name__, (_Joined, own), {})


def freeze(model: nn.Module, *, affine: bool = True) -> None:
    """Keep every batch-norm as it was loaded: its statistics and, with `affine`, its parameters."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
            if affine:
                module.requires_grad_(False)


def hold_untrained(model: nn.Module) -> None:
    """Keep the statistics of every batch-norm whose own parameters are not trained."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
            module.eval()
