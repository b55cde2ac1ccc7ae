"""The module that every name becomes: images in, features out, and an identity that follows its bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from backbones.errors import UserError
from backbones.preprocess import Preprocessing, Transform


class TextTower(Protocol):
    """What an encoder trained with text adds."""

    logit_scale: float

    def encode(self, texts: list[str], device: torch.device) -> Tensor:
        """M texts -> M x dim, not normalised."""


@dataclass
class Parts:
    """What a family's loader hands over."""

    encoder: nn.Module  # images -> N x dim
    dim: int
    tap: str
    preprocessing: Preprocessing
    architecture: str
    source: str  # the file or folder that the weights were read from
    standardise: bool = False
    text: TextTower | None = None
    # May other crops of an image, and its mirror image, be shown to it? False where left and right, or the
    # frame, mean something to the encoder.
    views: bool = True


class Backbone(nn.Module):
    """An image encoder with its preprocessing and its fingerprint; frozen until `requires_grad_(True)`.

    The text tower of a CLIP model is kept beside the module and is not one of its parameters: optimisers
    and distributed training see the image encoder only.
    """

    def __init__(self, name: str, parts: Parts, *, augmentation: str = "resized-crop") -> None:
        super().__init__()
        self.name = name
        self.dim = parts.dim
        self.tap = parts.tap
        self.architecture = parts.architecture
        self.source = parts.source
        self.standardise = parts.standardise
        self.preprocessing = parts.preprocessing
        # A preprocessing of somebody else's own does what only they know.
        self.views = parts.views and type(parts.preprocessing) is Preprocessing
        self.transform = Transform(parts.preprocessing)
        self.train_transform = Transform(parts.preprocessing, augmentation)
        self.encoder = parts.encoder
        self._text = parts.text
        self._fingerprint: str | None = None
        self.requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """N x 3 x size x size, normalised -> N x dim."""
        return self.encoder(images)

    @property
    def device(self) -> torch.device:
        """Where the encoder's weights are."""
        return next(self.encoder.parameters()).device

    @property
    def fingerprint(self) -> str:
        """`digest()` as it was when first asked for: the identity under which features are stored."""
        if self._fingerprint is None:
            self._fingerprint = self.digest()
        return self._fingerprint

    def digest(self) -> str:
        """SHA-256 of the encoder's structure, its tensors, the tap and the preprocessing, computed now.

        `b.digest() == b.fingerprint` proves that no weight has moved since. The name, the device and the
        memory format play no part.
        """
        about = (self.tap, asdict(self.preprocessing), repr(self.encoder))
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for key, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @torch.no_grad()
    def encode_text(self, texts: list[str]) -> Tensor:
        """M x dim, not normalised, in the space of the image features."""
        return self._require_text().encode(list(texts), self.device)

    @property
    def logit_scale(self) -> float:
        """The learned factor of the cosine between image and text, as trained."""
        return self._require_text().logit_scale

    def _require_text(self) -> TextTower:
        if self._text is None:
            raise UserError(f"{self.name} has no text encoder; use a CLIP backbone, such as clip-rn50")
        if self.tap != "projected":
            raise UserError(
                f'{self.name} at tap "{self.tap}" shares no space with text; use the tap "projected"'
            )
        return self._text
