"""Small copies of the images on a page, stored with the run so that the page can be written again."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backbones import reading
from probe.report.html import look_first

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "thumbnails.json"
TEST = "test"
SIDE = 168  # pixels: sharp at 112 on a high-density screen, about 7 kB each


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


def key(split: str, identity: str) -> str:
    """What an image is called among the thumbnails: test images by their id, others by their split too."""
    return identity if split == TEST else f"{split}: {identity}"


def of_diagnostics(splits: Mapping[str, ShownSplit], diagnostics: Mapping[str, Any]) -> dict[str, str]:
    """Thumbnails of the examples in the confusions and in what to look at first, found by their ids.

    Row numbers would not do: images that could not be read are in the split but not in the features.
    """
    confusions = diagnostics.get("confusions") or []
    wanted = {(TEST, i) for c in confusions for i in (*c["ids"], *c.get("predicted_ids", ()))}
    wanted |= {(image["split"], image["id"]) for image in look_first.shown_images(diagnostics)}
    return {
        key(name, identity): data_uri(split[row][0])
        for name, split in splits.items()
        for row, identity in enumerate(split.ids)
        if (name, identity) in wanted
    }


def read(folder: Path) -> dict[str, str]:
    """The thumbnails in a run folder, by their `key`; empty if there are none."""
    try:
        content = json.loads(reading.content(folder / FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}
