"""Encoded bytes become an RGB image, or an error that names the image.

EXIF orientation is ignored, as by torchvision, timm and open_clip: published numbers were measured so.
Transparent images are laid over white; hidden colours would show otherwise. Where nothing is transparent,
the pixels are those of a plain conversion.
16-bit grey is scaled to 8 bits; a plain conversion would clip nearly all of it to white.
Of an animation the first frame is used.

A `BadImage` is the decoder's verdict on complete bytes: with the same decoder it will always be the same,
so it may be stored. Whatever else fails (no memory, a plugin that cannot be loaded because too many files are
open) raises an OSError or MemoryError, and says nothing about the image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from probe.data import decode_memory
from probe.errors import UserError

RULES = (
    1  # version of this module's rules: raise it when a change here makes bad images good or good ones bad
)
LARGEST = 90_000_000  # pixels
WAYS_OUT = "fix or remove it, or pass --skip-bad-images"
STRIP = 1 << 19  # pixels converted at a time, where a conversion takes several steps
BLOCK = 64 << 20  # bytes; the C library keeps what is below 32 MB
CODECS = ("jpg", "libjpeg_turbo", "jpg_2000", "zlib", "zlib_ng", "libtiff", "webp", "avif")

# Bytes per pixel while an image is decoded. Pillow keeps most modes in four; there is also a copy in RGB or,
# in training, a crop; and some decoders hold the whole image in a form of their own.
HELD = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "LA": 4, "PA": 4}
COPY = 4
DECODER = {"WEBP": 12, "AVIF": 8, "JPEG2000": 16}
PROGRESSIVE = 6  # of a JPEG, whose coefficients are all held until the last scan


class BadImage(UserError):
    """An image that cannot be decoded; the message names it."""


def rgb(data: bytes, where: str, ways_out: str = WAYS_OUT) -> Image.Image:
    """Decode `data`; `where` names the image in the error, `ways_out` what to do about it."""
    if not data:
        raise BadImage(f"bad image {where}: it is empty; {ways_out}")
    load_plugins()
    needed = 0
    try:
        image = _opened(data)
        needed = bytes_needed(image)
        with decode_memory.taken(needed + len(data)):
            image.load()
            return to_rgb(image)
    except Exception as error:  # decoders raise nearly anything on garbage: OSError, SyntaxError, ...
        if _says_nothing(error):
            raise
        bytearray(needed)  # some decoders do not tell a lack of memory from garbage: MemoryError here does
        reason = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise BadImage(f"bad image {where}: {reason or type(error).__name__}; {ways_out}") from error


def _says_nothing(error: Exception) -> bool:
    """Does the error say nothing about the image? Decoders' OSErrors have no errno, the system's do."""
    if isinstance(error, OSError):
        return error.errno is not None or "out of memory" in str(error)
    return isinstance(error, (MemoryError, ImportError))


@lru_cache
def load_plugins() -> None:
    """Load all of Pillow's, once: one that fails to load when it is needed would make good images unknown.

    Large images also get large blocks of memory, which go back to the system as soon as they are free: of
    Pillow's usual ones every thread would keep as many as its largest image has needed.
    """
    Image.init()
    Image.core.set_block_size(BLOCK)


def identity() -> dict[str, Any]:
    """All that decides which bytes are a bad image; an ingredient of features where images were skipped."""
    from PIL import __version__, features

    load_plugins()
    return {
        "pillow": __version__,
        "codecs": {name: features.version(name) for name in CODECS},
        "truncated": ImageFile.LOAD_TRUNCATED_IMAGES,
        "largest": [LARGEST, Image.MAX_IMAGE_PIXELS],
        "rules": RULES,
    }


def _opened(data: bytes) -> Image.Image:
    """The image, not decoded yet; one that would fill the memory is refused because of its header."""
    image = Image.open(BytesIO(data))
    width, height = image.size
    if width * height > LARGEST:
        raise ValueError(f"{width:,} x {height:,} pixels are too many; at most {LARGEST / 1e6:.0f} million")
    return image


def bytes_needed(image: Image.Image) -> int:
    """The most memory that decoding an opened image will take."""
    own = PROGRESSIVE if "progressive" in image.info else DECODER.get(image.format or "", 0)
    return image.width * image.height * (HELD.get(image.mode, 4) + COPY + own)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _sixteen_bit_grey(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; store it as 8-bit")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return _by_strips(image, _over_white)
    return image.convert("RGB")


def _by_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """`convert(image)`, some rows at a time: the images in between are as small as a strip."""
    width, height = image.size
    rows = max(1, STRIP // width)
    if rows >= height:
        return convert(image)
    out = Image.new("RGB", image.size)
    for top in range(0, height, rows):
        out.paste(convert(image.crop((0, top, width, min(top + rows, height)))), (0, top))
    return out


def _sixteen_bit_grey(image: Image.Image) -> Image.Image:
    # mode I holds 8-bit values too, in some formats
    deep = image.mode != "I" or np.max(image.getextrema()) > 255

    def scaled(strip: Image.Image) -> Image.Image:
        pixels = np.clip(np.asarray(strip), 0, 65535).astype(np.uint32)
        if deep:
            pixels *= 255
            pixels //= 65535
        return Image.fromarray(pixels.astype(np.uint8)).convert("RGB")

    return _by_strips(image, scaled)


def _over_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image).convert("RGB")
