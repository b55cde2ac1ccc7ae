"""Printed letters and digits in the typefaces of the package pymupdf-fonts.

A model learns a character from four families of typefaces and is tested on three others, so it must know
what makes an A, and not how one family draws it. Some characters are easy everywhere; some differ by little
more than size (c and C, s and S) or by what a designer chose (0 and O, 1, l and I).

Every glyph is printed twice, at another size, place, tilt and contrast, which follow from the face and the
character alone. All 62 stand on one baseline at one size, so that capitals are larger than small letters.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from probe.data.dataset import Split
from probe.data.images import Images
from probe.errors import UserError

PACKAGE = "pymupdf_fonts"
SIDE = 96  # pixels
PRINTS = 2  # of every character in every face
STYLES = ("Regular", "Bold", "Italic", "BoldItalic")
FACES = {
    "train": (
        *(f"NotoSans_{style}" for style in STYLES),
        *(f"Ubuntu_{style}" for style in STYLES),
        *(f"CascadiaMono_{style}" for style in STYLES),
        *(f"FiraMono_{style}" for style in STYLES[:2]),
    ),
    "test": (
        *(f"FiraGO_{style}" for style in STYLES),
        *(f"SpaceMono_{style}" for style in STYLES),
        *(f"UbuntuMono_{style}" for style in STYLES),
    ),
}
CHARACTERS = ascii_uppercase + ascii_lowercase + digits
CLASS_NAMES = (
    *(f"capital {c}" for c in ascii_uppercase),
    *(f"small {c}" for c in ascii_lowercase),
    *(f"digit {c}" for c in digits),
)


class Prints(Images):
    """Grey pictures in memory."""

    def __init__(self, pixels: np.ndarray, names: list[str]) -> None:
        self._pixels, self._names = pixels, names  # N x SIDE x SIDE, uint8

    def stored(self, row: int) -> bytes:
        return self._pixels[row].tobytes()

    def where(self, row: int) -> str:
        return self._names[row]

    def decoded(self, stored: bytes, row: int) -> Image.Image:
        return Image.frombytes("L", (SIDE, SIDE), stored).convert("RGB")

    def hashed(self) -> np.ndarray:
        found = [hashlib.sha256(self.stored(row)).digest() for row in range(len(self._pixels))]
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 32)


def read() -> dict[str, Split]:
    """Train and test, of different families of typefaces."""
    if find_spec(PACKAGE) is None:
        raise UserError(
            "letters are drawn in the typefaces of pymupdf-fonts: pip install 'mr2-probe[letters]'"
        )
    return {split: _split(split, faces) for split, faces in FACES.items()}


def _split(name: str, faces: tuple[str, ...]) -> Split:
    made = [row for face in faces for row in _printed(face)]
    ids = [f"letters:{face}/{ord(c):02x}-{number}" for face, c, number, _ in made]
    labels = np.array([CHARACTERS.index(c) for _, c, _, _ in made], dtype=np.int64)
    pixels = np.stack([print_ for *_, print_ in made])
    return Split(name, Prints(pixels, ids), labels, ids, CLASS_NAMES)


def _printed(face: str) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Every print of every character in one face."""
    font = import_module(f"{PACKAGE}.{face}").fontbuffer
    sizes = {size: ImageFont.truetype(io.BytesIO(font), size) for size in range(52, 68, 4)}
    for character in CHARACTERS:
        for number in range(PRINTS):
            seed = hashlib.sha256(f"{face} {character} {number}".encode()).digest()
            yield face, character, number, _print(sizes, character, seed)


def _print(sizes: dict[int, ImageFont.FreeTypeFont], character: str, seed: bytes) -> np.ndarray:
    """One print: five bytes of the seed choose size, place, tilt and the two greys."""
    size, x, y, tilt, greys = seed[:5]
    font = list(sizes.values())[size % len(sizes)]
    paper, ink = 255 - greys % 48, greys // 4
    page = Image.new("L", (SIDE, SIDE), paper)
    place = (SIDE / 2 + (x % 13 - 6), SIDE * 0.7 + (y % 13 - 6))
    ImageDraw.Draw(page).text(place, character, fill=ink, font=font, anchor="ms")
    turned = page.rotate((tilt % 25 - 12), Image.Resampling.BICUBIC, fillcolor=paper)
    return np.asarray(turned)
