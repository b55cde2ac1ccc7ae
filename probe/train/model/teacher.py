"""A trained network that a method distils from: what a run left in its folder, frozen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import backbones
from probe.core.eval_mode import evaluation_mode
from probe.errors import UserError
from probe.heads import fitted
from probe.heads.fitted import FittedHead
from probe.train.model import tuned_weights

if TYPE_CHECKING:
    from backbones.backbone import Backbone


class Teacher:
    """The backbone and the head of a run; it is no part of what is trained, saved or sharded."""

    def __init__(self, backbone: Backbone, head: FittedHead) -> None:
        self.backbone, self.head, self.dim = backbone, head, backbone.dim
        backbone.encoder.requires_grad_(False)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """n x D features and n x K logits of n normalised images, in full precision."""
        encoder = self.backbone.encoder.to(inputs.device)
        with evaluation_mode(encoder), torch.autocast(inputs.device.type, enabled=False):
            features = encoder(inputs)
        return features, self.head.scores(features.cpu()).to(features)

    @property
    def fingerprint(self) -> str:
        """Of every weight of the encoder."""
        return self.backbone.digest()


def load(folder: Path, student: Backbone, class_names: Sequence[str]) -> Teacher:
    """The network of a run folder, as a teacher of `student`, whose images and classes it must share."""
    head, about = fitted.load(folder)
    if "backbone" not in about or about.get("also"):
        raise UserError(f"{folder} has no single backbone to learn from; give the folder of a run with one")
    if list(about["class_names"]) != list(class_names):
        raise UserError(f"{folder} knows other classes than these data; a teacher needs the same ones")
    backbone = backbones.load(**about["backbone"])
    if about.get("tuned"):
        tuned_weights.restore(backbone, folder / tuned_weights.FILE)
    if backbone.digest() != about["fingerprint"]:
        raise UserError(f"the weights of {backbone.name} are not those that {folder} was trained on")
    ours, theirs = student.preprocessing, backbone.preprocessing
    if (ours.size, ours.mean, ours.std) != (theirs.size, theirs.mean, theirs.std):
        raise UserError(
            f"the teacher {folder} takes {theirs.size} pixels, normalised by {theirs.mean} and {theirs.std}; "
            f"the student {ours.size}, by {ours.mean} and {ours.std}: they must be the same"
        )
    return Teacher(backbone, head)
