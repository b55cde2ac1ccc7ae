"""One row of the catalogue: all that sets a backbone apart from its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backbones.preprocess import Preprocessing
from backbones.sources import Source

if TYPE_CHECKING:
    from backbones.backbone import Parts

TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


class Family(Protocol):
    """Builds the networks of a family and fills them with weights."""

    def __call__(
        self, spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None
    ) -> Parts: ...


@dataclass(frozen=True)
class Spec:
    """All that sets a backbone apart from its family."""

    name: str  # what people type
    family: (
        str | Family
    )  # a name of `load_backbone.FAMILIES`; from outside: "package.module:function", or the function
    architecture: str  # the family's word for it
    source: Source  # where the weights are when no local ones are given
    taps: Mapping[
        str, int | None
    ]  # where features can be taken, and their dimension; the first is the default
    size: int | None  # side of the input in pixels
    licence: str  # of the weights
    note: str = ""
    # ImageNet top-1 in percent as published, by kind of evaluation: "linear", "k-NN", "zero-shot"
    imagenet: Mapping[str, float] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None  # None: the library's numbers for these weights
    augmentation: str = "resized-crop"  # the random view for training
    standardise: bool = False  # give the features zero mean and unit variance before a linear probe
    ignored: tuple[str, ...] = ()  # starts of keys that a checkpoint may carry beside the encoder
    open: bool = False  # a prefix for any name, not one backbone

    @property
    def dim(self) -> int | None:
        """Dimension of the features at the default tap; None behind an open prefix."""
        return next(iter(self.taps.values()), None)

    @property
    def family_name(self) -> str:
        """The family as text, for listings and messages."""
        if isinstance(self.family, str):
            return self.family
        return f"{self.family.__module__}:{getattr(self.family, '__qualname__', type(self.family).__name__)}"

    def row(self) -> dict[str, Any]:
        """Plain values for a listing or JSON."""
        return {
            "name": self.name,
            "family": self.family_name,
            "architecture": self.architecture,
            "dim": self.dim,
            "size": self.size,
            "taps": dict(self.taps),
            "weights": str(self.source),
            "licence": self.licence,
            "imagenet": dict(self.imagenet),
            "note": self.note,
        }
