"""Adjusted cross-entropy: every convex method as data for one loss and one solver.

Sample i of the training set contributes

    v_i * CE(a_i z_i + c_i, y_i),        z_i = W h_i + b  (N x K logits)

with a scale a_i > 0, a shift c_i (K numbers, constant) and a weight v_i >= 0, each of which depends on
the sample's own class only. A method *declares* the three; the training loss and the exact solver both read
that declaration, so they cannot drift apart. The arithmetic of training is here. The solver has its own in
`probe.solve.objective`, for blocks of several heads at once and with the curvature; a test holds the two, and
a plain loop, equal.

| method              | scale a      | shift c              | weight v        |
|---------------------|--------------|----------------------|-----------------|
| cross-entropy       | 1            | 0                    | 1               |
| logit adjustment    | 1            | tau log pi           | 1               |
| MR² logit margin    | 1 / gamma_y  | 0                    | 1               |
| LDAM, linear head   | 1            | -m_y at the target   | 1               |
| class-balanced      | 1            | 0                    | effective number|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from probe.errors import UserError


@dataclass(frozen=True)
class ClassAdjustment:
    """Scale, shift and weight of each class's samples; None means the neutral value (1, 0, 1)."""

    scale: Tensor | None = None  # K: a_y
    shift: Tensor | None = None  # K (the same for every sample) or K x K (one row for each true class y)
    weight: Tensor | None = None  # K: v_y

    def adjust(self, logits: Tensor, targets: Tensor) -> Tensor:
        """a_y z + c_y for N x K logits and N labels, in the dtype of `logits`."""
        if self.scale is not None:
            logits = logits * self.scale.to(logits)[targets].unsqueeze(1)
        if self.shift is not None:
            shift = self.shift.to(logits)
            logits = logits + (shift if shift.ndim == 1 else shift[targets])
        return logits

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """CE of each of the N samples, and its weight v (None: all 1); a batch's loss is sum v CE / sum v.

        Targets are N labels or, where neither the scale nor the shift depends on the sample's own class,
        N x K probabilities: the expected loss over the label, as Mixup and CutMix want it.
        """
        if targets.is_floating_point():
            return self._expected(logits, targets)
        scale = None if self.scale is None else self.scale.to(logits)[targets].unsqueeze(1)
        losses = _CrossEntropy.apply(logits, self.adjust(logits.detach(), targets), targets, scale)[0]
        return losses, None if self.weight is None else self.weight.to(losses)[targets]

    def _expected(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.scale is not None or (self.shift is not None and self.shift.ndim == 2):
            raise UserError("this loss adjusts a sample by its own class: it takes labels, not probabilities")
        targets = targets.to(logits)
        log_p = F.log_softmax(logits if self.shift is None else logits + self.shift.to(logits), dim=1)
        if self.weight is None:
            return -(targets * log_p).sum(1), None
        weighted = targets * self.weight.to(logits)
        weight = weighted.sum(1)
        return -(weighted * log_p).sum(1) / weight, weight

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the batch, weighted: sum v CE / sum v."""
        if self.weight is None and not targets.is_floating_point():
            return F.cross_entropy(self.adjust(logits, targets), targets)  # fused: the fastest there is
        losses, weight = self.losses(logits, targets)
        if weight is None:
            return losses.mean()
        return (weight * losses).sum() / weight.sum()

    def same_as_plain(self) -> bool:
        """True when the method cannot differ from cross-entropy on these classes (one scale aside)."""
        return all(
            t is None or torch.allclose(t, t[..., :1], rtol=1e-6)
            for t in (self.scale, self.shift, self.weight)
        )


class _CrossEntropy(torch.autograd.Function):
    """CE(a z + c, y) of each sample. The gradient a (softmax - onehot) is one pass over N x K, where the
    graph of scale, log-softmax and pick would take three."""

    @staticmethod
    def forward(
        logits: Tensor, adjusted: Tensor, targets: Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        log_p = F.log_softmax(adjusted, dim=1)
        return -log_p.gather(1, targets.unsqueeze(1)).squeeze(1), log_p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], inputs[2], inputs[3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        log_p, targets, scale = ctx.saved_tensors
        grad = grad.unsqueeze(1) if scale is None else grad.unsqueeze(1) * scale
        p = log_p.exp()
        p.scatter_add_(1, targets.unsqueeze(1), p.new_full((len(p), 1), -1.0))
        return p.mul_(grad), None, None, None
