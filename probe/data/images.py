"""Where the images of a split are stored, and the one way to them: what is decoded is what was hashed.

Features are kept under the digests of the images they were made of, so bytes that are read must be those that
were hashed, however much later: they are read once, hashed, compared, and only then decoded. An image that
changed, vanished for a moment or could not be read for lack of memory or files stops the run with one line;
a `BadImage`, which may be skipped for good, is the decoder's verdict on the very bytes that the key names.
"""

from __future__ import annotations

import errno
import hashlib
import os
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from backbones.reading import LASTING
from probe.data import decode
from probe.data.decode import BadImage
from probe.errors import UserError

# The digest of a file that could not be read when it was hashed: features are then kept under that very fact.
UNREADABLE = b"unreadable".ljust(32, b"\0")
WAYS_OUT = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "close other programs, or use fewer workers",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the network file system again",
}


class ImageChanged(UserError):
    """An image is no longer what was hashed; what was made under its digest is worthless."""


class Images(ABC):
    """The images of a split: picklable, thread-safe, cheap to make; decoded when asked for."""

    @abstractmethod
    def stored(self, row: int) -> bytes:
        """The stored content of an image, complete and as it is now; OSError where it cannot be read."""

    @abstractmethod
    def hashed(self) -> np.ndarray:
        """sha256 of every image's stored content, or UNREADABLE: N x 32 bytes."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The name of the image in error messages."""

    def decoded(self, stored: bytes, row: int) -> Image.Image:
        """The image in its stored content; raises `BadImage`."""
        return decode.rgb(stored, self.where(row))

    def forget(self, row: int) -> None:  # noqa: B027 - most sources remember nothing
        """Drop the digest that is remembered for later runs, because it is wrong."""

    def columns(self) -> list[str]:
        """What else is stored beside each image, by name; most sources have nothing."""
        return []

    def column(self, name: str) -> list[Any]:
        """The values of one of `columns()`, as plain Python values, one for each image."""
        raise KeyError(name)

    def digests(self) -> np.ndarray:
        """`hashed()`, once: from then on every image that is read must have its digest."""
        return self._digests

    @cached_property
    def _digests(self) -> np.ndarray:
        return self.hashed()

    def rgb(self, row: int) -> Image.Image:
        """The decoded image; raises `BadImage`, `ImageChanged`, or `UserError` if it cannot be read now."""
        known = vars(self).get("_digests")
        expected = None if known is None else known[row].tobytes()
        try:
            stored = self.stored(row)
        except OSError as error:
            if expected in (None, UNREADABLE) and error.errno in LASTING:
                reason = error.strerror or error
                raise BadImage(f"bad image {self.where(row)}: {reason}; {decode.WAYS_OUT}") from error
            raise passing(error, "read", self.where(row)) from error
        except MemoryError as error:
            raise passing(error, "read", self.where(row)) from error
        if expected is not None and hashlib.sha256(stored).digest() != expected:
            self.forget(row)
            raise ImageChanged(
                f"image {self.where(row)} changed while it was in use: its bytes are not those that were"
                " hashed; load the data and run again"
            )
        try:
            return self.decoded(stored, row)
        except (OSError, MemoryError, ImportError) as error:
            raise passing(error, "decode", self.where(row)) from error


def passing(error: Exception, what: str, where: str) -> UserError:
    """A failure that says nothing about the image, in one line."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error) or type(error).__name__
    advice = WAYS_OUT.get(number or 0, "put it back if it was moved")
    return UserError(f"cannot {what} image {where} now: {reason}; {advice}, and run again")
