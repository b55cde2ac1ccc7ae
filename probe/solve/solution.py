"""What a linear solver returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.solve.inputs import FeatureRows

ABSENT_BIAS = -1e9  # of a class with no row: its exact bias is -inf, which would breed NaN downstream


@dataclass(frozen=True)
class LinearSolution:
    """A linear head, logits = X W^T + b, and how well it is solved."""

    weight: Tensor  # K x D
    bias: Tensor  # K
    l2: float
    objective: float  # at these weights, in float64
    gap: float  # certified bound of objective - optimum
    iterations: int
    status: str  # "converged", or why it ended before: "stalled" (precision exhausted), "iterations" (limit)

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    def logits(self, X: Any) -> Tensor:
        """N x K scores on the CPU, computed block by block."""
        blocks = FeatureRows(X).blocks(16384, self.weight.dtype, self.weight.device)
        return torch.cat([torch.addmm(self.bias, block, self.weight.T).cpu() for _, block in blocks])
