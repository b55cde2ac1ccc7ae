"""Losses that are a class adjustment (scale, shift and weight by class), which the exact solver reads too:

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
    """Cross-entropy of adjusted logits. The three tensors are constants, so they are not saved."""

    scale: Tensor | None
    shift: Tensor | None
    weight: Tensor | None

    def __init__(self, classes: ClassInfo, adjustment: ClassAdjustment) -> None:
        super().__init__(classes)
        self.register_buffer("scale", adjustment.scale, persistent=False)
        self.register_buffer("shift", adjustment.shift, persistent=False)
        self.register_buffer("weight", adjustment.weight, persistent=False)

    def adjustment(self) -> ClassAdjustment:
        return ClassAdjustment(self.scale, self.shift, self.weight)

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.adjustment().losses(logits, targets)


class ERM(AdjustedCrossEntropy):
    """Cross-entropy."""

    def __init__(self, classes: ClassInfo) -> None:
        super().__init__(classes, ClassAdjustment())

    @property
    def degenerate(self) -> bool:
        return False  # nobody expects it to differ from itself


class ClassBalanced(AdjustedCrossEntropy):
    """Cross-entropy weighted by the effective number of each class's samples (Cui et al. 2019)."""

    def __init__(self, classes: ClassInfo, *, beta: float = 0.9999) -> None:
        weight = effective_weights(classes.required_counts, beta)
        super().__init__(classes, ClassAdjustment(weight=weight))


class LogitAdjustment(AdjustedCrossEntropy):
    """CE of z + tau log pi: the model learns what remains once the prior is accounted for."""

    def __init__(self, classes: ClassInfo, *, tau: float = 1.0) -> None:
        super().__init__(classes, ClassAdjustment(shift=tau * classes.prior.log()))


class EffectiveFrequency(AdjustedCrossEntropy):
    """Logit adjustment whose prior is EF(c), the mean held-out probability of class c on its own samples."""

    def __init__(
        self, classes: ClassInfo, *, frequency: Sequence[float] | Tensor | None = None, tau: float = 1.0
    ) -> None:
        if frequency is None:
            raise UserError(
                f"{classes.spec.name} needs frequency (method.frequency in a recipe): {classes.num_classes} "
                "held-out mean probabilities, one per class; probes on frozen features find it by themselves"
            )
        ef = torch.as_tensor(frequency, dtype=torch.float64, device="cpu")
        if ef.shape != (classes.num_classes,) or not bool((ef > 0).all()):
            raise UserError(f"{classes.spec.name}: frequency must be {classes.num_classes} positive numbers")
        super().__init__(classes, ClassAdjustment())
        self.tau = tau
        self.register_buffer("frequency", ef.clone())  # saved: a training may measure it again

    frequency: Tensor

    def take_frequency(self, frequency: Tensor) -> None:
        self.frequency.copy_(frequency)

    def adjustment(self) -> ClassAdjustment:
        return ClassAdjustment(shift=self.tau * (self.frequency / self.frequency.sum()).log())


class LinearLDAM(AdjustedCrossEntropy):
    """LDAM's margin on the true logit of a linear head: a shift of -m_y, so the problem stays convex."""

    def __init__(self, classes: ClassInfo, *, max_margin: float = 0.5) -> None:
        margins = ldam_margins(classes.required_counts, max_margin)
        super().__init__(classes, ClassAdjustment(shift=-torch.diag(margins)))


def ldam_margins(counts: Tensor, max_margin: float) -> Tensor:
    """n_k^(-1/4), rescaled so that the rarest of the K classes has `max_margin` (Cao et al., as released)."""
    margins = counts.pow(-0.25)
    return margins * (max_margin / margins.max())
