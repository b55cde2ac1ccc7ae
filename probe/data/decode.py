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

WAYS_OUT = "mend or remove it, or pass --skip-bad-images"


class BadImage(UserError):
    """An image that cannot be decoded; the message names it."""


def rgb(data: bytes, where: str, ways_out: str = WAYS_OUT) -> Image.Image:
    """Decode `data`; `where` names the image in the error, `ways_out` what to do about it."""
    if not data:
        raise BadImage(f"bad image {where}: it is empty; {ways_out}")
    try:
        image = Image.open(BytesIO(data))
        image.load()
        return to_rgb(image)
    except (
        Exception
    ) as error:  # decoders raise nearly anything on garbage: OSError, SyntaxError, ValueError, ...
        reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise BadImage(f"bad image {where}: {reason or type(error).__name__}; {ways_out}") from error


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
    pixels = np.asarray(image).astype(np.int64)
    if pixels.max(initial=0) > 255 or image.mode != "I":  # mode I holds 8-bit values too, in some formats
        pixels = pixels * 255 // 65535
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image).convert("RGB")
