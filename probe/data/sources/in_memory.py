"""Data sets of torchvision's kind, in memory: `data[i]` is (image, number of its class)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from probe.data import decode
from probe.data.dataset import Split
from probe.data.images import Images
from probe.data.sources.image_folder import FolderImages
from probe.errors import UserError

SIZE = 8  # bytes of width and height before the pixels


class PixelImages(Images):
    """Pictures that somebody else's code decodes: what is hashed is their pixels."""

    def __init__(self, samples: Any, name: str) -> None:
        self._samples, self._name = samples, name

    def stored(self, row: int) -> bytes:
        image = decode.to_rgb(_picture(self._samples[row][0], self.where(row)))
        return b"".join(n.to_bytes(SIZE // 2, "little") for n in image.size) + image.tobytes()

    def where(self, row: int) -> str:
        return f"number {row} of {self._name} in memory"

    def decoded(self, stored: bytes, row: int) -> Image.Image:
        width, height = (int.from_bytes(stored[i : i + SIZE // 2], "little") for i in (0, SIZE // 2))
        return Image.frombytes("RGB", (width, height), stored[SIZE:])

    def hashed(self) -> np.ndarray:
        found = [hashlib.sha256(self.stored(row)).digest() for row in range(len(self._samples))]
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 32)


def _picture(image: Any, where: str) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    pixels = np.asarray(image) if hasattr(image, "__array__") else None
    if pixels is not None and pixels.dtype == np.uint8 and (pixels.ndim == 2 or pixels.shape[2:] == (3,)):
        return Image.fromarray(pixels)
    raise UserError(
        f"image {where} is a {type(image).__name__}; give pictures (PIL, or uint8 of height x width x 3): "
        "the data set without its transform"
    )


def read(given: Mapping[str, Any]) -> dict[str, Split]:
    """The splits of data sets that are known by split."""
    train = given.get("train")
    if train is None:
        raise UserError(f"there is no train among {', '.join(given) or 'nothing'}; it is what is learnt from")
    labels = {name: _labels(samples, name) for name, samples in given.items()}
    names = getattr(train, "classes", None)
    class_names = tuple(map(str, range(labels["train"].max(initial=-1) + 1) if names is None else names))
    return {name: _split(name, samples, labels[name], class_names) for name, samples in given.items()}


def _split(name: str, samples: Any, labels: np.ndarray, class_names: tuple[str, ...]) -> Split:
    own = getattr(samples, "classes", None)
    if own is not None and tuple(map(str, own)) != class_names:
        raise UserError(f"{name} and train do not have the same classes in the same order")
    wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
    if len(wrong):
        raise UserError(
            f"{name}: label {labels[wrong[0]]} of number {wrong[0]} is out of range; there are "
            f"{len(class_names)} classes"
        )
    files = _files(samples)
    if files is not None:  # a folder of images: its files are hashed and decoded like any other's
        root, paths = files
        return Split(name, FolderImages(root, paths), labels, paths, class_names)
    ids = [f"{name}:{row}" for row in range(len(labels))]
    return Split(name, PixelImages(samples, name), labels, ids, class_names)


def _labels(samples: Any, name: str) -> np.ndarray:
    try:
        known = getattr(samples, "targets", None)
        values = [samples[row][1] for row in range(len(samples))] if known is None else list(known)
        return np.array([int(value) for value in values], dtype=np.int64)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise UserError(
            f"{name}: a sample is (image, number of its class), and this data set's are not ({error})"
        ) from error


def _files(samples: Any) -> tuple[Path, list[str]] | None:
    """Root and relative paths of a data set of files, such as torchvision's ImageFolder."""
    root, pairs = getattr(samples, "root", None), getattr(samples, "samples", None)
    if root is None or not isinstance(pairs, list) or len(pairs) != len(samples):
        return None
    try:
        return Path(root), [Path(path).relative_to(root).as_posix() for path, _ in pairs]
    except (TypeError, ValueError):
        return None
