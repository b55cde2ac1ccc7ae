"""What a training is about: a network, a method, and the samples that train and validate it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.core.class_stats import ClassStats
from probe.errors import UserError
from probe.methods.base import Method
from probe.train.inputs.loaders import SampleLoader
from probe.train.model.network import Network
from probe.train.seeding import derive_seed, set_seed
from probe.train.step import Objective

HEAD = "head."  # what the names of the head's weights begin with, in a network's


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

    def views(self, method: Method) -> tuple[str, ...]:
        """The kinds of random views that are drawn of each training sample for this method."""
        wanted = method.views
        if self.train.draws_views or len(wanted) == 1:
            return wanted
        if not method.one_view:
            raise UserError(
                "this method needs several views of an image; cached features have one: use --finetune"
            )
        return wanted[:1]

    def objective(self, seed: int) -> Objective:
        """Network and method, with the networks that the method builds; the seed draws their weights."""
        with torch.random.fork_rng(devices=[]):
            set_seed(derive_seed(seed, "method"), torch.device("cpu"))
            self.method.build(self.network, np.asarray(self.train.labels))
        return Objective(self.network, self.method)

    def head_at_means(self, embedded: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The head's weights, by their names in the network, with a classifier that begins at class means.

        `embedded` is what the classifier sees of the N training samples (N x D); `weights` are the network's,
        whole, of which an adapter's stay as they are.
        """
        labels = np.asarray(self.train.labels)
        means = ClassStats.from_features(embedded, labels, self.num_classes).mean
        assert means is not None
        head = deepcopy(self.network.head).cpu()
        own = {name.removeprefix(HEAD): w for name, w in weights.items() if name.startswith(HEAD)}
        head.load_state_dict(own)
        head.start_from_means(means.float())
        return {HEAD + name: weight for name, weight in head.state_dict().items()}
