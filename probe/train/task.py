"""What a training is about: a network, a method, and the samples that train and validate it."""

from __future__ import annotations

from dataclasses import dataclass

from probe.methods.base import Method
from probe.train.inputs.loaders import SampleLoader
from probe.train.model.network import Network


@dataclass(frozen=True)
class Task:
    """What is trained on what."""

    network: Network
    method: Method
    train: SampleLoader
    num_classes: int
    optimizer: str  # a key of `optim.DEFAULTS`
    epochs: int
    validation: SampleLoader | None = None  # never trained on
    validation_views: int = 1  # samples of each image in it, stacked view by view; their scores are averaged
    metric: str = "accuracy"  # the best epoch is the one that validates best by it
