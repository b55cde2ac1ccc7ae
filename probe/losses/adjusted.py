"""Losses that are a class adjustment (scale, shift and weight by class), which the exact solver reads too:

sum_i v_y CE(a_y z_i + c_y, y_i) / sum_i v_y
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    gives_logits = True

    def margin_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits

    @property
    def degenerate(self) -> bool:
        return False  # nobody expects it to differ from itself


class ClassBalanced(AdjustedCrossEntropy):
    """Cross-entropy weighted by the effective number of each class's samples (Cui et al. 2019)."""

    def __init__(self, classes: ClassInfo, *, beta: float = 0.9999) -> None:
        counts = classes.required_counts if classes.group_counts is None else classes.group_counts
        super().__init__(classes, ClassAdjustment(weight=effective_weights(counts, beta)))

    def adjustment(self) -> ClassAdjustment | None:  # type: ignore[override] # None: weights of samples
        return None if self.grouped else super().adjustment()

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.grouped:
            return super().losses(logits, targets)
        assert self.weight is not None
        losses, _ = ClassAdjustment().losses(logits, targets)
        return losses, self.weight.to(losses)[self.group_of(targets)]


class LogitAdjustment(AdjustedCrossEntropy):
    """CE of z + tau log pi: the model learns what remains once the prior is accounted for."""

    def __init__(self, classes: ClassInfo, *, tau: float = 1.0) -> None:
        super().__init__(classes, ClassAdjustment(shift=tau * classes.prior.log()))


class EffectiveFrequency(AdjustedCrossEntropy):
    """EF(c), the mean held-out probability of class c on its own samples, in the place of its frequency.

    `form: prior` is logit adjustment by it; `form: weights` class-balanced weights of N EF(c) / sum EF
    samples (eq. 11 leaves open how a number from 0 to 1 stands for a count; this keeps their sum).
    """

    def __init__(
        self,
        classes: ClassInfo,
        *,
        frequency: Sequence[float] | Tensor | None = None,
        tau: float = 1.0,
        form: str = "prior",
        beta: float = 0.9999,
    ) -> None:
        share = _held_out_share(classes, frequency)
        if form == "weights" and classes.counts is None:
            raise UserError(f"{classes.spec.name}: form=weights needs class_counts")
        super().__init__(classes, ClassAdjustment())
        self.tau, self.form, self.beta = tau, form, beta
        self.images = None if classes.counts is None else float(classes.counts.sum())
        self.register_buffer("frequency", share)  # saved: a training may measure it again

    frequency: Tensor

    def take_frequency(self, frequency: Tensor) -> None:
        self.frequency.copy_(frequency / frequency.sum())

    def adjustment(self) -> ClassAdjustment:
        if self.form == "prior":
            return ClassAdjustment(shift=self.tau * self.frequency.log())
        return ClassAdjustment(weight=effective_weights((self.images or 0.0) * self.frequency, self.beta))


def _held_out_share(classes: ClassInfo, frequency: Sequence[float] | Tensor | None) -> Tensor:
    """Effective frequencies that sum to 1."""
    if frequency is None:
        raise UserError(
            f"{classes.spec.name} needs frequency (method.frequency in a recipe): {classes.num_classes} "
            "held-out mean probabilities, one per class; probes on frozen features find it by themselves"
        )
    ef = torch.as_tensor(frequency, dtype=torch.float64, device="cpu")
    if ef.shape != (classes.num_classes,) or not bool((ef > 0).all()):
        raise UserError(f"{classes.spec.name}: frequency must be {classes.num_classes} positive numbers")
    return ef / ef.sum()


class MarginSoftmax(AdjustedCrossEntropy):
    """log(1 + sum_{k != y} exp(Delta_yk + z_k - z_y)), any margins Delta (ELM eq. 3)

    That is the cross-entropy of z + Delta_y with Delta_yy = 0. `log-ratio` is logit adjustment with tau =
    factor (1: balanced softmax), `ldam` is `ldam-linear` with max_margin = factor.
    """

    def __init__(
        self,
        classes: ClassInfo,
        *,
        delta: str = "log-ratio",
        factor: float = 1.0,
        matrix: Sequence[Sequence[float]] | Tensor | None = None,
    ) -> None:
        k = classes.num_classes
        if (matrix is not None) != (delta == "matrix"):
            raise UserError(f"{classes.spec.name}: matrix and delta=matrix go together; give both or neither")
        given = None if matrix is None else torch.as_tensor(matrix, dtype=torch.float64, device="cpu")
        margins = DELTAS[delta](classes.prior) if given is None else given
        if given is not None and (given.shape != (k, k) or not bool(given.isfinite().all())):
            raise UserError(f"{classes.spec.name}: matrix must be {k} x {k} finite numbers")
        margins = factor * margins.expand(k, k).clone().fill_diagonal_(0)
        super().__init__(classes, ClassAdjustment(shift=margins))


# Delta_yk of K priors: a row for each true class y (or one column, the same for every k).
DELTAS: dict[str, Callable[[Tensor], Tensor]] = {
    "log-ratio": lambda pi: pi.log() - pi.log().unsqueeze(1),
    "prior": lambda pi: pi,
    "inverse-root": lambda pi: pi.pow(-0.25).unsqueeze(1),
    "ldam": lambda pi: ldam_margins(pi, 1.0).unsqueeze(1),
    "constant": torch.ones_like,
}


class LinearLDAM(AdjustedCrossEntropy):
    """LDAM's margin on the true logit of a linear head: a shift of -m_y, so the problem stays convex."""

    def __init__(self, classes: ClassInfo, *, max_margin: float = 0.5) -> None:
        margins = ldam_margins(classes.required_counts, max_margin)
        super().__init__(classes, ClassAdjustment(shift=-torch.diag(margins)))


def ldam_margins(counts: Tensor, max_margin: float) -> Tensor:
    """n_k^(-1/4), rescaled so that the rarest of the K classes has `max_margin` (Cao et al., as released)."""
    margins = counts.pow(-0.25)
    return margins * (max_margin / margins.max())
