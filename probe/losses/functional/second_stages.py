"""What second stages do to a trained classifier (Kang et al., Decoupling Representation and Classifier)."""

from __future__ import annotations

import torch
from torch import Tensor


def tau_norm(weight: Tensor, *, tau: float) -> Tensor:
    """w_k / |w_k|^tau for K x D rows: tau 0 leaves them, 1 makes them unit rows. A row of zeros stays.

    The classifier has no bias then.
    """
    norms = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return weight / torch.where(norms > 0, norms, 1).pow(tau)


def lws(logits: Tensor, scales: Tensor) -> Tensor:
    """N x K logits, bias included, times one scale for each of the K classes."""
    return logits * scales
