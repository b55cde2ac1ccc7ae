"""Rows of a split become a batch of pixels; this runs in loader threads or processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from backbones.preprocess import Preprocessing
from probe.data import Split, decode_memory
from probe.data.decode import BadImage
from probe.data.images import passing
from probe.errors import UserError
from probe.features.views import CENTER, View

if TYPE_CHECKING:
    from probe.features.shared_pixels import PixelBuffers


class BatchRequest(NamedTuple):
    """Which rows of the split to load, and the shard that they belong to."""

    shard: int
    rows: range
    place: int | None = None  # of the loader's shared buffers to decode into; None: memory of its own


@dataclass
class DecodedBatch:
    """Decoded, resized and cropped images of one shard; what could not be decoded is in `bad`."""

    shard: int
    requested: int  # how many rows were requested
    rows: list[int]  # rows of the split that are here
    pixels: Tensor  # len(rows) x 3 x size x size, uint8
    bad: dict[int, str]  # row -> why
    failure: UserError | None = None  # why the run must stop: it says nothing about the image
    place: int | None = None  # of the shared buffers that hold the pixels


@dataclass(frozen=True)
class BatchLoader:
    """Loads batches of one view; a dataset for torch's DataLoader whose index is a `BatchRequest`."""

    split: Split
    preprocessing: Preprocessing
    view: View = CENTER
    buffers: PixelBuffers | None = None  # that this process shares with the one that asks

    def __getitem__(self, request: BatchRequest) -> DecodedBatch:
        shard, rows, place = request
        size = self.preprocessing.size
        # Channels last from the start, as the images are and as the encoder wants them.
        if place is None or self.buffers is None:
            pixels = torch.empty(len(rows), size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        else:
            pixels = self.buffers.pixels(place, len(rows))
        batch = DecodedBatch(shard, len(rows), [], pixels, {}, place=place)
        for row in rows:
            # Errors are returned as data: raised in a loader process, they would lose their message.
            try:
                with decode_memory.until_seen():
                    pixels[len(batch.rows)] = self._pixels(row)
                batch.rows.append(row)
            except BadImage as error:
                batch.bad[row] = str(error)
            except UserError as error:
                batch.failure = error
                break
            except MemoryError as error:
                batch.failure = passing(error, "resize", self.split.ids[row])
                break
        # What stands in the shared buffers is not sent along, no view of it either: to send one, torch would
        # move the buffers of this process to other memory.
        batch.pixels = pixels[: len(batch.rows)] if place is None else torch.empty(0, dtype=torch.uint8)
        return batch

    def _pixels(self, row: int) -> Tensor:
        digest = self.split.digests[row].tobytes() if self.view.seeded else b""
        return self.view.pixels(self.preprocessing, self.split[row][0], digest)

    def __len__(self) -> int:
        return len(self.split)
