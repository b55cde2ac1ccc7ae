"""The row family: a loss is its rows (scale, shift, weight by class), and the exact solver reads the same.

sum_i v_y CE(a_y z_i + c_y, y_i) / sum_i v_y
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.core.adjustment import ClassAdjustment
from probe.errors import UserError
from probe.losses.base import ClassInfo, MeanLoss, effective_weights


class AdjustedCrossEntropy(MeanLoss):
    """Cross-entropy of adjusted rows. The three tensors are constants, so they are not saved."""

    scale: Tensor | None
    shift: Tensor | None
    weight: Tensor | None

    def __init__(self, problem: ClassInfo, rows: ClassAdjustment) -> None:
        super().__init__(problem)
        self.register_buffer("scale", rows.scale, persistent=False)
        self.register_buffer("shift", rows.shift, persistent=False)
        self.register_buffer("weight", rows.weight, persistent=False)

    def rows(self) -> ClassAdjustment:
        return ClassAdjustment(self.scale, self.shift, self.weight)

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.rows().losses(logits, targets)


class ERM(AdjustedCrossEntropy):
    def __init__(self, problem: ClassInfo) -> None:
        super().__init__(problem, ClassAdjustment())


class ClassBalanced(AdjustedCrossEntropy):
    def __init__(self, problem: ClassInfo, *, beta: float) -> None:
        assert problem.counts is not None
        super().__init__(problem, ClassAdjustment(weight=effective_weights(problem.counts, beta)))


class LogitAdjustment(AdjustedCrossEntropy):
    """CE of z + tau log pi: the model learns what remains once the prior is accounted for."""

    def __init__(self, problem: ClassInfo, *, tau: float = 1.0) -> None:
        super().__init__(problem, ClassAdjustment(shift=tau * problem.prior.log()))


class EffectiveFrequency(AdjustedCrossEntropy):
    """Logit adjustment whose prior is EF(c), the mean held-out probability of class c on its own samples."""

    def __init__(self, problem: ClassInfo, *, frequency: Sequence[float] | Tensor | None, tau: float) -> None:
        if frequency is None:
            raise UserError(
                f"ef needs method.frequency, {problem.num_classes} held-out mean probabilities, one a class; "
                "probes on frozen features find it by themselves"
            )
        ef = torch.as_tensor(frequency, dtype=torch.float64, device="cpu")
        if ef.shape != (problem.num_classes,) or not bool((ef > 0).all()):
            raise UserError(f"ef: frequency must be {problem.num_classes} positive numbers")
        super().__init__(problem, ClassAdjustment(shift=tau * (ef / ef.sum()).log()))


class LinearLDAM(AdjustedCrossEntropy):
    """LDAM's margin on the true logit of a linear head: a shift of -m_y, so the problem stays convex."""

    def __init__(self, problem: ClassInfo, *, max_margin: float) -> None:
        assert problem.counts is not None
        super().__init__(
            problem, ClassAdjustment(shift=-torch.diag(ldam_margins(problem.counts, max_margin)))
        )


def ldam_margins(counts: Tensor, max_margin: float) -> Tensor:
    """n_k^(-1/4), rescaled so that the rarest class has `max_margin` (Cao et al., the released form)."""
    margins = counts.pow(-0.25)
    return margins * (max_margin / margins.max())
