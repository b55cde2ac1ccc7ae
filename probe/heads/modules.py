"""Classifier heads on N x D features.

Every head has three views, so that one training loop serves every loss:

    head(features)          logits, for ordinary losses (a cosine head scales its cosines)
    head.cosines(features)  cosines, for angular losses (cosine and ETF heads)
    head.embed(features)    the features a representation term should see (an adapter changes them)

`head.scores(head.embed(x), "logits" | "cosines")` does the work once when both are needed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.core.whitening import Whitening
from probe.errors import UserError, nearest


@dataclass(frozen=True)
class PlainHead:
    """All that classifies, without the module: a kind that `probe.heads.fitted` knows, and its tensors."""

    kind: str
    tensors: dict[str, Tensor]
    settings: dict[str, Any] = field(default_factory=dict)


class Head(nn.Module, ABC):
    """What the training loop, the losses and the export know of a head."""

    sized = True  # does the size of its weights matter, so that an l2 penalty makes sense?

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.dim, self.num_classes = dim, num_classes

    @property
    def classifier(self) -> Head:
        """The head that gives the scores: itself, or the one behind an adapter."""
        return self

    @abstractmethod
    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        """N x K logits or cosines of embedded features."""

    @abstractmethod
    def plain(self) -> PlainHead:
        """The head as it is now; the tensors are its own, not copies."""

    def embed(self, features: Tensor) -> Tensor:
        """N x D features as the classifier, and a representation term, see them."""
        return features

    def forward(self, features: Tensor) -> Tensor:
        return self.scores(self.embed(features))

    def cosines(self, features: Tensor) -> Tensor:
        """N x K cosines between features and class vectors."""
        return self.scores(self.embed(features), "cosines")

    def start_from_means(self, means: Tensor) -> None:
        """Begin as the nearest-class-mean classifier of these K x D means."""
        raise UserError(f"a {type(self).__name__.lower()} head is fixed: it cannot start from class means")

    def start_from_text(self, embeddings: Tensor, logit_scale: float) -> None:
        """Begin as the zero-shot classifier of these K x D text embeddings (for unit-norm image features)."""
        raise UserError(f"a {type(self).__name__.lower()} head is fixed: it cannot start from text")

    def _vectors(self, vectors: Tensor) -> Tensor:
        if vectors.shape != (self.num_classes, self.dim):
            raise UserError(
                f"the head needs {self.num_classes} x {self.dim} starting vectors, not {tuple(vectors.shape)}"
            )
        return vectors


class Linear(Head):
    """W h + b, starting at zero: every class equally likely, and the first gradient is the exact one."""

    def __init__(self, dim: int, num_classes: int, *, bias: bool = True) -> None:
        super().__init__(dim, num_classes)
        self.weight = nn.Parameter(torch.zeros(num_classes, dim))
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None

    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        if takes == "cosines":
            raise UserError('this method works on cosines: use the head "cosine"')
        return F.linear(embedded, self.weight, self.bias)

    def plain(self) -> PlainHead:
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        return PlainHead("linear", {"weight": self.weight, "bias": bias})

    @torch.no_grad()
    def start_from_means(self, means: Tensor) -> None:
        # -|h - mu|^2/2 without the part that all classes share.
        self.weight.copy_(self._vectors(means))
        if self.bias is not None:
            self.bias.copy_(-means.square().sum(1) / 2)

    @torch.no_grad()
    def start_from_text(self, embeddings: Tensor, logit_scale: float) -> None:
        self.weight.copy_(logit_scale * F.normalize(self._vectors(embeddings), dim=1))
        if self.bias is not None:
            self.bias.zero_()


class AngleHead(Head, ABC):
    """A head of angles between class vectors and features, raw or whitened (`probe.core.whitening`)."""

    weight: Tensor
    mean: Tensor | None  # D; both None: angles between raw features
    matrix: Tensor | None  # D x D

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__(dim, num_classes)
        self.register_buffer("mean", None)
        self.register_buffer("matrix", None)

    def whiten(self, by: Whitening) -> None:
        """From now on measure angles between whitened features; the class vectors stay as they are."""
        self.mean, self.matrix = by.mean.to(self.weight), by.matrix.to(self.weight)

    def seen(self, embedded: Tensor) -> Tensor:
        """N x D features, or means of such, in the coordinates of the class vectors."""
        if self.mean is None or self.matrix is None:
            return embedded
        return Whitening(self.mean, self.matrix)(embedded)

    def tensors(self) -> dict[str, Tensor]:
        """All that the angles depend on, as `probe.heads.fitted` names it."""
        if self.mean is None or self.matrix is None:
            return {"weight": self.weight}
        return {"weight": self.weight, "whitening.mean": self.mean, "whitening.matrix": self.matrix}


class Cosine(AngleHead):
    """scale x cos(w_k, h), no bias; the scale is fixed, or learned through its logarithm."""

    sized = False  # only the directions of its weights matter

    def __init__(
        self, dim: int, num_classes: int, *, scale: float = 30.0, learn_scale: bool = False, seed: int = 0
    ) -> None:
        super().__init__(dim, num_classes)
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(num_classes, dim, generator=generator) / math.sqrt(dim))
        # one element, not none: FSDP cannot split a tensor without dimensions
        self.log_scale = nn.Parameter(torch.tensor([math.log(scale)]), requires_grad=learn_scale)

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()

    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        cosines = F.linear(F.normalize(self.seen(embedded), dim=1), F.normalize(self.weight, dim=1))
        return cosines if takes == "cosines" else self.scale.to(cosines) * cosines

    def plain(self) -> PlainHead:
        return PlainHead("cosine", self.tensors(), {"scale": float(self.scale)})

    @torch.no_grad()
    def start_from_means(self, means: Tensor) -> None:
        self.weight.copy_(F.normalize(self.seen(self._vectors(means)), dim=1))

    @torch.no_grad()
    def start_from_text(self, embeddings: Tensor, logit_scale: float) -> None:
        self.weight.copy_(F.normalize(self._vectors(embeddings), dim=1))
        self.log_scale.fill_(math.log(logit_scale))


class ETF(AngleHead):
    """A fixed simplex: K unit rows with cosine -1/(K - 1) between any two. Only what precedes it can learn.

    M = sqrt(K/(K-1)) E V^T with E (K x (K-1)) an orthonormal basis of the vectors that sum to 0, and V
    (D x (K-1)) random orthonormal columns, so D >= K - 1 is enough. Which class gets which vector is
    arbitrary then; `start_from_means` turns the simplex to where the classes are.
    """

    def __init__(self, dim: int, num_classes: int, *, scale: float = 30.0, seed: int = 0) -> None:
        super().__init__(dim, num_classes)
        if dim < num_classes - 1:
            raise UserError(
                f"a simplex of {num_classes} classes needs at least {num_classes - 1} features, not {dim}"
            )
        self.scale = scale
        generator = torch.Generator().manual_seed(seed)
        free = torch.randn(num_classes, num_classes - 1, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(free - free.mean(0)).Q
        turn = torch.linalg.qr(torch.randn(dim, num_classes - 1, generator=generator, dtype=torch.float64)).Q
        simplex = math.sqrt(num_classes / (num_classes - 1)) * basis @ turn.T
        self.register_buffer("weight", simplex.to(torch.get_default_dtype()))

    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        cosines = F.linear(F.normalize(self.seen(embedded), dim=1), self.weight)
        return cosines if takes == "cosines" else self.scale * cosines

    def plain(self) -> PlainHead:
        return PlainHead("cosine", self.tensors(), {"scale": self.scale})

    @torch.no_grad()
    def start_from_means(self, means: Tensor) -> None:
        """Turn the simplex as close to the centred class means as it gets (the orthogonal Procrustes problem:
        the polar factor of E^T means, in the place of V^T)."""
        k, means = self.num_classes, self.seen(self._vectors(means)).double()
        centring = torch.eye(k, dtype=torch.float64, device=means.device) - 1 / k
        basis = torch.linalg.qr(centring).Q[:, : k - 1]
        left, _, right = torch.linalg.svd(basis.T @ means, full_matrices=False)
        self.weight.copy_(math.sqrt(k / (k - 1)) * basis @ left @ right)


class Adapter(Head):
    """h + B relu(A h) in front of another head: a small trainable map, so that representation terms can act
    on cached features too. B starts at zero, so training starts from the features as they are."""

    def __init__(
        self, dim: int, num_classes: int, *, head: str = "linear", width: int | None = None, **params: Any
    ) -> None:
        super().__init__(dim, num_classes)
        if head == "adapter":
            raise UserError(
                "an adapter goes in front of a linear, cosine or etf head, not of another adapter"
            )
        width = max(1, dim // 4) if width is None else width
        self.down, self.up = nn.Linear(dim, width), nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
        self.head = make(head, dim, num_classes, **params)

    @property
    def classifier(self) -> Head:
        return self.head

    def embed(self, features: Tensor) -> Tensor:
        return features + self.up(F.relu(self.down(features)))

    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        return self.head.scores(embedded, takes)

    def plain(self) -> PlainHead:
        inner = self.head.plain()
        own = {name: t for name, t in self.named_parameters() if name.startswith(("down.", "up."))}
        return PlainHead("adapter", {**inner.tensors, **own}, {**inner.settings, "head": inner.kind})

    def start_from_means(self, means: Tensor) -> None:
        self.head.start_from_means(means)

    def start_from_text(self, embeddings: Tensor, logit_scale: float) -> None:
        self.head.start_from_text(embeddings, logit_scale)


HEADS: dict[str, type[Head]] = {"linear": Linear, "cosine": Cosine, "etf": ETF, "adapter": Adapter}


def make(kind: str, dim: int, num_classes: int, **params: Any) -> Head:
    """The head of that kind, from `dim` features to `num_classes` scores.

    >>> head = make("cosine", 1024, 37, scale=16.0, learn_scale=True)
    """
    if kind not in HEADS:
        raise UserError(f'there is no head "{kind}"{nearest(kind, HEADS)}')
    try:
        return HEADS[kind](dim, num_classes, **params)
    except TypeError as error:
        raise UserError(f"head {kind}: {error}") from None
