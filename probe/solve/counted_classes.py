"""Which classes take part in a logistic regression, and what is left of its rows' weights and adjustment."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core.adjustment import ClassAdjustment
from probe.errors import UserError


def checked(adjustment: ClassAdjustment, num_classes: int) -> ClassAdjustment:
    """The same, if its shapes and signs fit this many classes."""
    k = num_classes
    for name, shapes in (("scale", [(k,)]), ("shift", [(k,), (k, k)]), ("weight", [(k,)])):
        value = getattr(adjustment, name)
        if value is not None and tuple(value.shape) not in shapes:
            raise UserError(
                f"adjustment.{name} has shape {tuple(value.shape)}, {k} classes need {shapes[-1]}"
            )
    scale, weight = adjustment.scale, adjustment.weight
    if scale is not None and not bool(((scale > 0) & scale.isfinite()).all()):
        raise UserError("adjustment.scale must be finite and positive for every class")
    if weight is not None and not bool(((weight >= 0) & weight.isfinite()).all()):
        raise UserError("adjustment.weight must be finite and not negative for any class")
    return adjustment


def present_classes(
    labels: Tensor, weight: Tensor | None, adjustment: ClassAdjustment, num_classes: int
) -> Tensor:
    """Classes with a sample that counts."""
    count = torch.bincount(labels, weights=weight, minlength=num_classes).double()
    if adjustment.weight is not None:
        count = count * adjustment.weight.to(count)
    present = (count > 0).nonzero().flatten()
    if len(present) < 2:
        raise UserError(
            f"{len(present)} of {num_classes} classes have samples: a classifier needs at least two"
        )
    return present


def without_absent(weight: Tensor | None, labels: Tensor, present: Tensor, num_classes: int) -> Tensor | None:
    """Samples of a class that does not count weigh nothing, even if the class exists in the labels."""
    counted = torch.zeros(num_classes, dtype=torch.bool)
    counted[present] = True
    if bool(counted[labels].all()):
        return weight
    return counted[labels].double() * (1.0 if weight is None else weight)


def restricted(adjustment: ClassAdjustment, present: Tensor) -> ClassAdjustment:
    """The adjustment of the classes that are present."""

    def part(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.cpu()[present]

    shift = part(adjustment.shift)
    if shift is not None and shift.ndim == 2:
        shift = shift[:, present]
    return ClassAdjustment(part(adjustment.scale), shift, part(adjustment.weight))
