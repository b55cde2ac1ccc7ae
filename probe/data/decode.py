"""Encoded bytes become an RGB image, or an error that names the image.

EXIF orientation is ignored, as torchvision, timm and open_clip do: published numbers were measured so.
Transparency is laid over white; hidden colours below it would otherwise show. Where nothing is transparent,
the pixels are those of a plain conversion.
16-bit grey is scaled to 8 bits; a plain conversion would clip nearly all of it to white.
Of an animation the first frame is taken.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from probe.errors import UserError

LARGEST = 90_000_000  # pixels: a gigabyte while it is converted
WAYS_OUT = "mend or remove it, or pass --skip-bad-images"


class BadImage(UserError):
    """An image that cannot be decoded; the message names it."""


def rgb(data: bytes, where: str, ways_out: str = WAYS_OUT) -> Image.Image:
    """Decode `data`; `where` names the image in the error, `ways_out` what to do about it."""
    if not data:
        raise BadImage(f"bad image {where}: it is empty; {ways_out}")
    try:
        image = _opened(data)
        image.load()
        return to_rgb(image)
    except (
        Exception
    ) as error:  # decoders raise nearly anything on garbage: OSError, SyntaxError, ValueError, ...
        reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise BadImage(f"bad image {where}: {reason or type(error).__name__}; {ways_out}") from error


def _opened(data: bytes) -> Image.Image:
    """The image, not decoded yet; one that would fill the memory is refused by its header."""
    image = Image.open(BytesIO(data))
    width, height = image.size
    if width * height > LARGEST:
        raise ValueError(f"{width:,} x {height:,} pixels are too many; at most {LARGEST / 1e6:.0f} million")
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _sixteen_bit_grey(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; store it as 8-bit")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return _over_white(image.convert("RGBA"))
    return image.convert("RGB")


def _sixteen_bit_grey(image: Image.Image) -> Image.Image:
    pixels = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
    if pixels.max(initial=0) > 255 or image.mode != "I":  # mode I holds 8-bit values too, in some formats
        pixels *= 255
        pixels //= 65535
    return Image.fromarray(pixels.astype(np.uint8)).convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image).convert("RGB")
