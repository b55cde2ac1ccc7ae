"""What a method may ask of the training it is part of, of a step, of a batch and of the network.

`probe.train` provides all four; a method needs nothing else of it, so this room does not import that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class NetworkLike(Protocol):
    """Encoder and head as one module."""

    @property
    def encoder(self) -> nn.Module: ...

    @property
    def head(self) -> Any: ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """n x K logits."""

    def parts(self, inputs: Tensor, takes: str) -> tuple[Tensor, Tensor]:
        """n x K logits or cosines (`takes`), and the n x D features that representation terms see."""

    def embedded(self, inputs: Tensor) -> Tensor:
        """n x D: what the classifier is applied to, `head.scores(embedded, takes)`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of encoder and head."""


class BatchLike(Protocol):
    """A micro-batch of n samples on the device."""

    @property
    def views(self) -> Sequence[Tensor]:
        """The random views that the method asks for, each n x ...; on cached features the first one only."""

    @property
    def inputs(self) -> Tensor:
        """The first view."""

    @property
    def targets(self) -> Tensor:
        """n labels, or n x K probabilities (Mixup, CutMix)."""

    @property
    def mixed(self) -> tuple[Tensor, Tensor] | None:
        """n labels of each image, and of the one mixed into it (Mixup, CutMix); None: nothing was mixed."""

    @property
    def groups(self) -> Tensor | None:
        """n groups that the loss acts on; None: it acts on the classes."""

    @property
    def share(self) -> Tensor:
        """What part of a mixed image is the first one; the same on all processes."""

    @property
    def index(self) -> Tensor:
        """n row numbers of the training set, on the CPU."""

    def __len__(self) -> int: ...


class StepLike(Protocol):
    """One optimiser step on one batch."""

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """All that is trained; after `gradients` they hold gradients."""

    def gradients(self) -> float:
        """Forward and backward pass of the batch: its gradient is in the parameters, its loss is returned.

        It may be called again, for example with other weights: samples, views and dropout are the same.
        """

    def update(self) -> None:
        """Clip the gradient and let the optimiser step."""

    def finite_gradients(self) -> bool:
        """Is every gradient finite, on all processes?"""

    def total_norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The Euclidean norm of all tensors together, where each is shaped (and sharded) like a parameter."""

    def frozen_statistics(self) -> AbstractContextManager[None]:
        """Inside the block a forward pass leaves batch-norm and class statistics as they were."""


class TrainingLike(Protocol):
    """The training, between its stages and epochs."""

    @property
    def network(self) -> NetworkLike: ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """The N labels of the training set."""

    @property
    def groups(self) -> Tensor | None:
        """The N groups of the training set that the loss acts on; None: it acts on the classes."""

    def training_logits(self) -> Tensor:
        """N x K logits of the training set, without augmentation, on the CPU."""

    def restart(self) -> None:
        """Give the network its weights at step 0; the optimiser and the averaged weights start again too."""

    def restart_head(self) -> None:
        """Go on with the kept weights (averaged, where they are) and a classifier that begins at the class
        means of the training set; the optimiser and the averaged weights start again."""


class TeacherLike(Protocol):
    """A trained network that stays as it is."""

    @property
    def dim(self) -> int:
        """D of its features."""

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """n x D features and n x K logits, without gradient."""


TotalNorm = Callable[[Sequence[Tensor]], Tensor]
