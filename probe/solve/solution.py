"""What a linear solver returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.core.threads import free_threads
from probe.solve.devices import CPU, exact_home
from probe.solve.inputs import BLOCK, FeatureRows

ABSENT_BIAS = -1e9  # of a class with no sample: its exact bias is -inf, which would turn into NaN later


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
    device: torch.device = CPU  # where it was solved, and where its scores are computed

    @property
    def converged(self) -> bool:
        """Is the gap within the tolerance that was asked for?"""
        return self.status == "converged"

    def logits(self, X: Any) -> Tensor:
        """N x K scores of N x D features, on the CPU."""
        return linear_logits(X, self.weight, self.bias, self.device)


@free_threads()
def linear_logits(X: Any, weight: Tensor, bias: Tensor, device: torch.device = CPU) -> Tensor:
    """X Wᵀ + b (N x K) on the CPU, computed block by block on `device`; W is K x D and b has K numbers.

    Inside `collectives.together()` each process computes its rows, and all get the whole.
    """
    rows = FeatureRows(X)
    if exact_home(device) != device and weight.dtype == torch.float64:
        device = exact_home(device)
    weight, bias = weight.to(device), bias.to(device)
    scores = torch.empty(rows.share.stop - rows.share.start, len(weight), dtype=weight.dtype)
    for start, block in rows.blocks(BLOCK, weight.dtype, device):
        scores[start : start + len(block)] = torch.addmm(bias, block, weight.T).cpu()
    return rows.share.joined(scores)
