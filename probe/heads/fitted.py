"""A trained head as plain tensors: all that classifies features, and nothing that could run code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.scaling import NEUTRAL, FeatureMatrix, Scaling, blocks_of
from probe.core.whitening import Whitening
from probe.errors import UserError
from probe.system import checksums
from probe.system.atomic import write_atomic

FORMAT = 1
FILE = "head.safetensors"
MEAN, SPREAD = "scaling.mean", "scaling.spread"  # names of the tensors of a head's scaling


@dataclass(frozen=True)
class FittedHead:
    """A head as tensors: the softmax of `scores(X)` gives the class probabilities."""

    kind: str  # a key of SCORES
    tensors: dict[str, Tensor]
    settings: dict[str, Any] = field(default_factory=dict)  # of the kind, as JSON holds them
    scaling: Scaling = NEUTRAL

    def scores(self, features: Tensor | FeatureMatrix) -> Tensor:
        """N x K scores of N x D unscaled features, read in blocks."""
        score = SCORES[self.kind]
        return torch.cat([score(self, self.scaling(block)) for block in blocks_of(features)])

    def scores_over(self, views: Sequence[Tensor | FeatureMatrix]) -> Tensor:
        """N x K scores of N images, averaged over their views (each N x D).

        The scores of k-NN are logarithms of votes, and most classes have none: its votes are averaged.
        """
        total = self.scores(views[0])
        for view in views[1:]:
            own = self.scores(view)
            total = torch.logaddexp(total, own) if self.kind == "knn" else total + own
        if len(views) == 1:
            return total
        return total - math.log(len(views)) if self.kind == "knn" else total / len(views)

    def adjusted(self, factor: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> FittedHead:
        """The head whose score of class k is factor_k z_k + shift_k (K numbers each, or one for all).

        A linear head stays one; any other keeps its tensors, with the two beside them.
        """
        classes = self.num_classes
        f, s = (torch.as_tensor(v, dtype=torch.float64).expand(classes) for v in (factor, shift))
        if self.kind == "linear":
            weight, bias = self.tensors["weight"], self.tensors["bias"]
            scaled = {"weight": (f.unsqueeze(1) * weight).to(weight), "bias": (f * bias + s).to(bias)}
            return replace(self, tensors=scaled)
        if self.kind == "adjusted":
            f, s = f * self.tensors["factor"], f * self.tensors["shift"] + s
            return replace(self, tensors={**self.tensors, "factor": f, "shift": s})
        tensors = {**self.tensors, "factor": f.clone(), "shift": s.clone()}
        return replace(self, kind="adjusted", tensors=tensors, settings={**self.settings, "of": self.kind})

    @property
    def num_classes(self) -> int:
        """K."""
        if "num_classes" in self.settings:
            return int(self.settings["num_classes"])
        return len(self.tensors["centres" if "centres" in self.tensors else "weight"])


@dataclass(frozen=True)
class OnScaled:
    """A fitted head for features that are scaled already, as a probe's problem has them."""

    head: FittedHead

    def logits(self, X: Tensor | FeatureMatrix) -> Tensor:
        """N x K scores of N x D scaled features."""
        return replace(self.head, scaling=NEUTRAL).scores(X)


def _linear(head: FittedHead, features: Tensor) -> Tensor:
    weight, bias = head.tensors["weight"], head.tensors["bias"]
    return features.to(weight) @ weight.T + bias


def _cosine(head: FittedHead, features: Tensor) -> Tensor:
    weight = head.tensors["weight"]
    features = features.to(weight)
    if "whitening.matrix" in head.tensors:
        features = Whitening(head.tensors["whitening.mean"], head.tensors["whitening.matrix"])(features)
    return head.settings["scale"] * F.normalize(features, dim=1) @ F.normalize(weight, dim=1).T


def _adapter(head: FittedHead, features: Tensor) -> Tensor:
    """h + B relu(A h), then the head behind it."""
    t = head.tensors
    hidden = F.relu(F.linear(features.to(t["down.weight"]), t["down.weight"], t["down.bias"]))
    return SCORES[head.settings["head"]](head, features + F.linear(hidden, t["up.weight"], t["up.bias"]))


def _gaussian(head: FittedHead, features: Tensor) -> Tensor:
    """Log-density of one Gaussian per class, with diagonal covariances, up to a constant."""
    centres, log_variance = head.tensors["centres"], head.tensors["log_variance"]
    precision = (-log_variance).exp()
    h = features.to(centres)
    distances = (
        h.square() @ precision.T - 2 * h @ (centres * precision).T + (centres.square() * precision).sum(1)
    )
    return -(distances + log_variance.sum(1)) / 2


def _adjusted(head: FittedHead, features: Tensor) -> Tensor:
    """The scores of another kind of head, each class's times a factor and shifted."""
    scores = SCORES[head.settings["of"]](head, features)
    return scores * head.tensors["factor"].to(scores) + head.tensors["shift"].to(scores)


def mean_of(heads: Sequence[FittedHead]) -> FittedHead:
    """The mean of the scores of M heads of one kind, each on its own D of M D features, head after head."""
    first = heads[0]
    tensors: dict[str, Tensor] = {}
    for number, head in enumerate(heads):
        tensors |= {f"{number}.{name}": tensor for name, tensor in head.tensors.items()}
        if head.scaling.mean is not None and head.scaling.spread is not None:
            tensors |= {f"{number}.{MEAN}": head.scaling.mean, f"{number}.{SPREAD}": head.scaling.spread}
    own = {"heads": len(heads), "of": first.kind, "settings": first.settings}
    about = {**own, "unit_norm": first.scaling.unit_norm, "num_classes": first.num_classes}
    return FittedHead("mean", tensors, about)


def _mean(head: FittedHead, features: Tensor) -> Tensor:
    """Each head's scores of its share of the features, averaged."""
    s = head.settings
    total: Tensor | float = 0.0
    for number, part in enumerate(features.chunk(s["heads"], dim=1)):
        begin = f"{number}."
        own = {name.removeprefix(begin): t for name, t in head.tensors.items() if name.startswith(begin)}
        scaling = Scaling(own.pop(MEAN, None), own.pop(SPREAD, None), s["unit_norm"])
        total = total + SCORES[s["of"]](FittedHead(s["of"], own, s["settings"]), scaling(part))
    assert isinstance(total, Tensor)
    return total / s["heads"]


def _knn(head: FittedHead, features: Tensor) -> Tensor:
    import probe.solve.knn as knn

    votes = knn.votes(
        head.tensors["bank"],
        head.tensors["labels"],
        features.to(head.tensors["bank"]),
        num_classes=head.settings["num_classes"],
        k=head.settings["k"],
        weighted=head.settings["weighted"],
    )
    return (votes / votes.sum(dim=1, keepdim=True)).log()


SCORES: dict[str, Callable[[FittedHead, Tensor], Tensor]] = {
    "linear": _linear,
    "cosine": _cosine,
    "adapter": _adapter,
    "gaussian": _gaussian,
    "adjusted": _adjusted,
    "knn": _knn,
    "mean": _mean,
}


def save(head: FittedHead, folder: Path, about: Mapping[str, Any]) -> None:
    """Write `head.safetensors`; `about` (class names, backbone, method) travels in its header as JSON."""
    from safetensors.torch import save as to_bytes

    tensors = {name: t.contiguous() for name, t in head.tensors.items()}
    if head.scaling.mean is not None and head.scaling.spread is not None:
        tensors |= {MEAN: head.scaling.mean, SPREAD: head.scaling.spread}
    header = {
        "format": FORMAT,
        "kind": head.kind,
        "settings": head.settings,
        "unit_norm": head.scaling.unit_norm,
        "about": dict(about),
    }
    write_atomic(folder / FILE, to_bytes(tensors, metadata={"head": json.dumps(header)}))


def load(folder: Path) -> tuple[FittedHead, dict[str, Any]]:
    """The head and what was said about it; refuses anything that `save` did not write."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} has no {FILE}; give a run folder, as `probe run` writes it")
    checksums.check(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["head"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        mean, spread = tensors.pop(MEAN, None), tensors.pop(SPREAD, None)
        if header["format"] != FORMAT or header["kind"] not in SCORES:
            raise UserError(
                f"{path}: format {header['format']}, kind {header['kind']!r} is not known to this version"
            )
        scaling = Scaling(mean, spread, header["unit_norm"])
        return FittedHead(header["kind"], tensors, header["settings"], scaling), header["about"]
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} is damaged or was not written by mr2-probe ({error}); run the probe again"
        ) from error
