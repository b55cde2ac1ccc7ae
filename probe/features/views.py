"""Views: the ways in which each image of a split can be shown to a backbone.

    center     the evaluation crop
    flip       its mirror image
    crop-<j>   a nearly square crop of half to all of the image's area, mirrored or not

Where a crop lies follows from j and the image's stored bytes (their SHA-256), and from nothing else: not from
the image's place in the split, the number of processes, or the state or version of a random generator. So a
view is the same in every run and on every machine, and for a file that is predicted later.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from backbones.preprocess import INTERPOLATIONS, to_bytes
from probe.errors import UserError, nearest

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from backbones.preprocess import Preprocessing

RULES = 1  # raise it whenever the pixels of a view other than the evaluation crop change
AREA = (0.5, 1.0)  # of a crop, as a part of the image's; a long image is cut to SHAPE, whatever is left
SHAPE = (3 / 4, 4 / 3)  # its width over its height
NAME = re.compile(r"center|flip|crop-([1-9][0-9]{0,3})")


class ViewedBackbone(Protocol):
    """What is asked of a backbone before other views than the evaluation crop are shown to it."""

    @property
    def name(self) -> str: ...

    @property
    def views(self) -> bool: ...  # may it see them?


@dataclass(frozen=True)
class View:
    """One way to look at every image, by its name."""

    name: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(
                f'there is no view "{self.name}"{nearest(self.name, ("center", "flip", "crop-1"))}'
                "; a view is center, flip, or crop-1, crop-2, ..."
            )

    @property
    def seeded(self) -> bool:
        """Does it differ from image to image, by the image's digest?"""
        return self.name.startswith("crop")

    @property
    def ingredient(self) -> dict[str, Any] | None:
        """What a cache key says about it; None for the evaluation crop, which was there before all others."""
        if self == CENTER:
            return None
        numbers = {"area": list(AREA), "shape": list(SHAPE)} if self.seeded else {}
        return {"name": self.name, "rules": RULES, **numbers}

    def pixels(self, numbers: Preprocessing, image: Image, digest: bytes = b"") -> Tensor:
        """uint8, channels x size x size; `digest` is the SHA-256 of the image's stored bytes."""
        if self.seeded:
            return to_bytes(_crop(numbers, image, hashlib.sha256(f"{self.name} ".encode() + digest).digest()))
        pixels = numbers.pixels(image)
        return pixels.flip(-1) if self.name == "flip" else pixels

    def check(self, backbone: ViewedBackbone) -> None:
        """Refuse to show it to a backbone that may not see it."""
        if self != CENTER and not backbone.views:
            raise UserError(
                f"{backbone.name} takes no view of an image but its own evaluation crop; "
                "use features.views=center"
            )


CENTER = View("center")


def chosen(choice: str | int) -> tuple[View, ...]:
    """The views that a recipe asks for: "center", "flip", or a number of crops.

    The evaluation crop is always there, and the first of them.
    """
    if isinstance(choice, int):
        return (CENTER, *(View(f"crop-{j}") for j in range(1, choice + 1)))
    return (CENTER,) if choice == CENTER.name else (CENTER, View(choice))


def _crop(numbers: Preprocessing, image: Image, seed: bytes) -> Image:
    """The crop that five numbers in [0, 1), read from the seed, describe, at the backbone's input size."""
    from PIL import Image as pil

    image = image if image.mode == "RGB" else image.convert("RGB")
    width, height = image.size
    area, shape, left, top, coin = (int.from_bytes(seed[i : i + 4], "big") / 2**32 for i in range(0, 20, 4))
    pixels = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
    ratio = SHAPE[0] * (SHAPE[1] / SHAPE[0]) ** shape
    across, down = min(width, math.sqrt(pixels * ratio)), min(height, math.sqrt(pixels / ratio))
    across, down = min(across, down * SHAPE[1]), min(down, across / SHAPE[0])
    x, y = left * (width - across), top * (height - down)
    box = (x, y, min(x + across, width), min(y + down, height))
    mode = pil.Resampling(INTERPOLATIONS[numbers.interpolation])
    cut = image.resize((numbers.size, numbers.size), mode, box=box)
    return cut.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if coin < 0.5 else cut
