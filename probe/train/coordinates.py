"""Coordinates of cached features that suit gradient steps, and where class vectors begin in them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core.class_stats import ClassStats
from probe.core.scaling import FeatureMatrix, Scaling
from probe.core.whitening import Whitening, sketch, whitening
from probe.heads import AngleHead, Head

POWER_STEPS = 30


def whiten_head(head: Head, X: Tensor | FeatureMatrix) -> Whitening | None:
    """Let the head measure angles of whitened features: returns the whitening where X can have it once,
    before the first step, else gives it to the classifier (behind an adapter, or on rows on disk)."""
    found, classifier = whitening(X), head.classifier
    if classifier is head and isinstance(X, Tensor):
        return found
    assert isinstance(classifier, AngleHead)
    classifier.whiten(found)
    return None


def class_means(X: Tensor | FeatureMatrix, y: NDArray[np.int64], num_classes: int) -> Tensor:
    """K x D means of the classes, where class vectors of angles begin, and a fixed simplex belongs."""
    means = ClassStats.from_features(X, y, num_classes).mean
    assert means is not None
    return means.float()


def conditioning_of(X: Tensor | FeatureMatrix, scale: Tensor | None) -> Scaling:
    """The mean of N x D features, and the standard deviation of their largest principal direction, times the
    largest factor by which a method scales logits (`scale`, K)."""
    some = sketch(X)
    mean = some.mean(dim=0)
    centred = some - mean
    v = torch.randn(some.shape[1], 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(POWER_STEPS):
        v = v / v.norm().clamp(min=1e-300)
        v = centred.T @ (centred @ v) / len(some)
    size = float(v.norm().sqrt()) * (1.0 if scale is None else float(scale.max()))
    return Scaling(mean.float(), torch.full_like(mean, size if size > 0 else 1.0).float())
