"""A run as a model: the backbones that it used, the head that it saved, and what turns images into logits.

>>> model = probe.load("runs/effnet-lite0-pets-mr2-1a2b3c4d")
>>> model.predict(["cat.jpg", "dog.jpg"])          # or PIL images, or N x D features
>>> model.class_names_[model.predict("cat.jpg")[0]]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from PIL.Image import Image
from torch import Tensor, nn

from backbones import reading
from backbones.backbone import Backbone
from backbones.preprocess import Preprocessing
from probe.data.decode import rgb
from probe.data.sources.image_folder import LARGEST
from probe.errors import UserError
from probe.features.views import CENTER, View
from probe.heads.export import HeadLayer
from probe.heads.fitted import FittedHead
from probe.probing import classifier
from probe.runs.folder import RunFolder
from probe.runs.predict import load_backbone_of

BATCH = 64  # images at a time
FLIP = View("flip")


class ImageClassifier(nn.Module):
    """Pixels to logits, as one graph: every encoder's features side by side, in every view, to the head.

    `forward` takes one batch per encoder, n x 3 x size x size, normalised or, with `from_bytes`, uint8, since
    each encoder has a size and numbers of its own. The scores of the views are averaged.
    """

    def __init__(
        self, encoders: Sequence[Backbone], head: FittedHead, views: Sequence[View], *, from_bytes: bool
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(backbone.encoder for backbone in encoders)
        self.head, self.mirrors = HeadLayer(head), tuple(view == FLIP for view in views)
        self.numbers = tuple(backbone.preprocessing for backbone in encoders)
        self.from_bytes = from_bytes
        self.requires_grad_(False)
        self.eval()

    def forward(self, *pixels: Tensor) -> Tensor:
        seen: Sequence[Tensor] = pixels
        if self.from_bytes:
            seen = [_normalised(numbers, p) for numbers, p in zip(self.numbers, pixels, strict=True)]
        total = torch.zeros(())
        for mirror in self.mirrors:
            shown = [p.flip(-1) for p in seen] if mirror else seen
            features = [encoder(p) for encoder, p in zip(self.encoders, shown, strict=True)]
            total = total + self.head(torch.cat(features, dim=1))
        return total / len(self.mirrors)


def _normalised(numbers: Preprocessing, pixels: Tensor) -> Tensor:
    """`Preprocessing.normalise` without its cache, which a graph cannot hold."""
    mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (numbers.mean, numbers.std))
    return (pixels.to(torch.float32) / 255 - mean) / std


class RunModel(classifier.ProbeClassifier):
    """What a run learnt, as a scikit-learn classifier of images or features.

    Backbones are read when images are first given: features need none of them.
    """

    _folder: RunFolder
    _about: dict[str, Any]

    @property
    def seed(self) -> int:
        """Whose head it is."""
        return int(self._about.get("seed", 0))

    @property
    def views(self) -> tuple[View, ...]:
        """In which each image is shown; the scores are averaged."""
        return tuple(View(name) for name in self._about.get("views", [CENTER.name]))

    @cached_property
    def backbones(self) -> tuple[Backbone, ...]:
        """The encoders whose features stand side by side, with the weights that the head was fitted to."""
        tuned = self._folder.of_seed(self.seed) if self._about.get("tuned") else None
        parts = (self._about, *self._about.get("also", []))
        return tuple(load_backbone_of(part, tuned) for part in parts)

    def module(self, *, from_bytes: bool = False) -> ImageClassifier:
        """Pixels to logits as one torch module."""
        return ImageClassifier(self.backbones, self.head_, self.views, from_bytes=from_bytes)

    def _scores(self, X: Any) -> Tensor:
        """N x K scores of images (paths or PIL images), or of N x D features."""
        if not _are_images(X):
            return super()._scores(X)
        images = [X] if isinstance(X, (str, PathLike, Image)) else list(X)
        return torch.cat([self._image_scores(batch) for batch in _batches(images)])

    @torch.inference_mode()
    def _image_scores(self, images: Sequence[Any]) -> Tensor:
        opened = [_opened(image) for image in images]
        features = []
        for view in self.views:
            if view.seeded and any(digest is None for _, digest in opened):
                raise UserError(f"the view {view.name} follows from an image's file; give paths, not images")
            features.append(torch.cat([_features(b, opened, view) for b in self.backbones], dim=1))
        return self.head_.scores_over(features)


def load(folder: str | Path, *, seed: int = 0) -> classifier.ProbeClassifier:
    """The model of a run, with the head of one of its seeds, or the classifier that `save` wrote.

    >>> probe.load("runs/effnet-lite0-pets-mr2-1a2b3c4d").predict(["cat.jpg"])
    """
    run = RunFolder(Path(folder))
    about = run.head(seed)[1]
    if "backbone" not in about:
        return classifier.load(folder)
    model = classifier.load(run.of_seed(seed).path, RunModel)
    assert isinstance(model, RunModel)
    model._folder, model._about = run, about
    return model


def _are_images(X: ArrayLike | Any) -> bool:
    """One image or several, by path or opened, and not an array of features?"""
    if isinstance(X, (str, PathLike, Image)):
        return True
    return isinstance(X, (list, tuple)) and len(X) > 0 and isinstance(X[0], (str, PathLike, Image))


def _batches(images: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(images), BATCH):
        yield images[start : start + BATCH]


def _opened(image: Any) -> tuple[Image, bytes | None]:
    """The image in RGB, and the SHA-256 of its file, where it has one."""
    if isinstance(image, Image):
        return image.convert("RGB"), None
    try:
        content = reading.content(reading.expanded(image), LARGEST)
    except OSError as error:
        raise UserError(f"cannot read {image}: {error.strerror or error}") from error
    decoded = rgb(content, str(image), ways_out="fix it, or leave it out")
    return decoded, hashlib.sha256(content).digest()


def _features(backbone: Backbone, images: Sequence[tuple[Image, bytes | None]], view: View) -> Tensor:
    """n x D, of one view of n images."""
    numbers = backbone.preprocessing
    pixels = torch.stack([view.pixels(numbers, image, digest or b"") for image, digest in images])
    return backbone(numbers.normalise(pixels))
