"""Classify images with the head that a run saved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

import backbones
from backbones import reading
from backbones.backbone import Backbone
from probe.data.decode import rgb
from probe.data.sources.image_folder import LARGEST
from probe.errors import UserError
from probe.features.views import CENTER, View
from probe.runs.folder import RunFolder

BATCH = 64


def predict(run: Path, images: Sequence[Path], *, top: int = 5) -> list[dict[str, Any]]:
    """For each image the `top` classes with their probabilities, best first.

    The backbones are loaded as the run described them, and must have the weights the head was trained on.
    """
    folder = RunFolder(run)
    head, about = folder.head()
    if "backbone" not in about:
        raise UserError(f"{run} holds a head but no backbone; give a run folder, as `probe run` writes it")
    tuned = folder if about.get("tuned") else None
    encoders = [load_backbone_of(part, tuned) for part in (about, *about.get("also", []))]
    names, views = about["class_names"], [View(name) for name in about.get("views", [CENTER.name])]
    records, predicted = folder.track_records(names), []
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        with torch.inference_mode():
            opened = [_open(path) for path in batch]
            features = [torch.cat([_features(b, opened, view) for b in encoders], 1) for view in views]
            probability = head.scores_over(features).softmax(dim=1)
        best = probability.topk(min(top, len(names)), dim=1)
        for path, values, classes in zip(batch, best.values.tolist(), best.indices.tolist(), strict=True):
            rows = [{"name": names[k], "probability": p} for k, p in zip(classes, values, strict=True)]
            if records is not None:
                rows = [{**row, "record": str(records[k])} for row, k in zip(rows, classes, strict=True)]
            predicted.append({"image": str(path), "classes": rows})
    return predicted


def load_backbone_of(about: Mapping[str, Any], tuned: RunFolder | None, device: str = "cpu") -> Backbone:
    """The backbone that a run described with its head, with the weights that the head was trained on."""
    backbone = backbones.load(**about["backbone"], device=device)
    if tuned is not None:
        tuned.restore_weights(backbone)
    if backbone.fingerprint != about["fingerprint"]:
        raise UserError(
            f"the weights of {backbone.name} are not those this head was trained on; "
            "restore them, or run the probe again"
        )
    return backbone


def _features(backbone: Backbone, images: Sequence[tuple[Image, bytes]], view: View) -> Tensor:
    """n x D, of one view of n images."""
    numbers = backbone.preprocessing
    pixels = torch.stack([view.pixels(numbers, image, digest) for image, digest in images])
    return backbone(numbers.normalise(pixels))


def _open(path: Path) -> tuple[Image, bytes]:
    """The image, and the SHA-256 of its file, which seeds its views."""
    try:
        content = reading.content(path, LARGEST)
        digest = hashlib.sha256(content).digest()
        return rgb(content, str(path), ways_out="fix it, or leave it out"), digest
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
