"""Small copies of the test images on a page, stored with the run so that the page can be written again."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backbones import reading

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "thumbnails.json"
SIDE = 96  # pixels: sharp at 62 on a high-density screen, about 3 kB each


class ShownSplit(Protocol):
    """A split: `split[row]` is (RGB image, label), and `ids` has one id per row."""

    ids: list[str]

    def __getitem__(self, index: int) -> tuple[Image, int]: ...


def data_uri(image: Image, side: int = SIDE) -> str:
    """A centred square JPEG of a PIL image, as text."""
    from PIL import ImageOps

    buffer = io.BytesIO()
    ImageOps.fit(image.convert("RGB"), (side, side)).save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def of_confusions(split: ShownSplit, diagnostics: Mapping[str, Any]) -> dict[str, str]:
    """Thumbnails of the examples in `diagnostics["confusions"]`, found in the split by their ids.

    Row numbers would not do: images that could not be read are in the split but not in the features.
    """
    wanted = {i for confusion in diagnostics.get("confusions") or [] for i in confusion["ids"]}
    rows = {identity: row for row, identity in enumerate(split.ids) if identity in wanted}
    return {identity: data_uri(split[row][0]) for identity, row in rows.items()}


def read(folder: Path) -> dict[str, str]:
    """The thumbnails in a run folder, by test id; empty if there are none."""
    try:
        content = json.loads(reading.content(folder / FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}
