"""Batches on which every loss is compared, and how a loss is called on one."""

from __future__ import annotations

import torch

import probe.losses
from tests.support.plain_losses import Case

# Labels of each batch (6 classes); counts are the training set's, not the batch's.
LABELS = {
    "sorted": [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5],
    "unsorted": [3, 0, 2, 5, 1, 0, 3, 2, 4, 1, 0, 1],
    "balanced": [4, 1, 3, 5, 0, 2, 2, 0, 5, 1, 4, 3],
    "single-sample classes": [0, 2, 3, 5],
    "one class": [2, 2, 2, 2, 2],
    "large logits": [3, 0, 2, 5, 1, 0, 3, 2, 4, 1, 0, 1],
}
NUM_CLASSES, DIM = 6, 4
COUNTS = {"balanced": [40.0] * 6}
SKEWED = [200.0, 5.0, 60.0, 1.0, 30.0, 12.0]
# Parameters that make a comparison sharp where the defaults do not.
PARAMS = {
    "ef": {"frequency": [0.9, 0.3, 0.5, 0.7, 0.2, 0.6]},
    "eql": {"gamma": 0.6, "threshold": 0.1},
    "elm": {"lam": 0.1, "alpha": "sqrt-count"},
    "range": {"margin": 3.0},
}


def case(name: str, takes: str = "logits", seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    y = LABELS[name]
    z = torch.randn(len(y), NUM_CLASSES, generator=generator, dtype=torch.float64)
    if takes == "cosines":
        z = torch.tanh(z) * 0.999
    elif name == "large logits":
        z = z * 300
    h = torch.randn(len(y), DIM, generator=generator, dtype=torch.float64) + 0.5
    return Case(z.tolist(), y, h.tolist(), NUM_CLASSES, COUNTS.get(name, SKEWED))


def tensors(c: Case, *, grad: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z = torch.tensor(c.z, dtype=torch.float64, requires_grad=grad)
    h = torch.tensor(c.h, dtype=torch.float64, requires_grad=grad)
    return z, torch.tensor(c.y), h


def make(name: str, batch: Case, /, **params):
    return probe.losses.make(
        name, num_classes=batch.num_classes, class_counts=batch.counts, **{**PARAMS.get(name, {}), **params}
    )
