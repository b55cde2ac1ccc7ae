"""Large images, many at once: small files that become gigabytes where nobody weighs them."""

from __future__ import annotations

import zlib
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np

from probe.data.dataset import Split
from probe.data.sources.image_folder import FolderImages
from probe.features.batches import BatchLoader, BatchRequest
from probe.features.encoder import BatchEncoder
from probe.features.pipeline import encoded
from tests.support import feature_world as pictures
from tests.torture.images import png
from tests.torture.jail import jailed
from tests.torture.kinds import Case, Torture

# PNG's colour type, bits a channel, channels
KINDS = {"grey": (0, 8, 1), "deep": (0, 16, 1), "colour": (2, 8, 3), "LA": (4, 8, 2), "RGBA": (6, 8, 4)}
STREAMS = 4


def large(side: int, kind: str) -> bytes:
    """A square PNG of one half-transparent colour."""
    colour, bits, channels = KINDS[kind]
    row = b"\0" + b"\x7f" * (side * channels * bits // 8)
    packing = zlib.compressobj(1)
    body = b"".join(packing.compress(row) for _ in range(side)) + packing.flush()
    return png(side, side, bits, colour, (b"IDAT", body))


def prepare(folder: Path) -> Case:
    (folder / "large").mkdir()
    names = []
    for kind, side in (("RGBA", 9433), ("LA", 8000), ("deep", 8000)):
        names.append(f"{kind}-{side}.png")
        (folder / "large" / names[-1]).write_bytes(large(side, kind))

    def case(luck: Random) -> None:
        chosen = [names[0], *luck.choices(names, k=2)]
        luck.shuffle(chosen)
        images = FolderImages(folder / "large", chosen, folder / "cache")
        ids = [f"{i}" for i in range(len(chosen))]
        split = Split("large", images, np.zeros(len(chosen), dtype=np.int64), ids, ("a", "b"))
        encoder = BatchEncoder(pictures.backbone(), batch_size=1, precision="float32", compile=False)
        requests = (BatchRequest(0, range(i, i + 1)) for i in range(len(chosen)))
        loader = BatchLoader(split, pictures.PREPROCESSING)
        with closing(encoded(requests, loader, encoder, STREAMS)) as stream:
            for batch, values in stream:
                assert not batch.bad, batch.bad
                assert batch.failure is None, batch.failure
                assert bool(values.isfinite().all())

    return case


PROMISE = "no more than 2 GB, whatever the number of streams"
ROWS = (Torture("bad input: large images", PROMISE, jailed(prepare), quick=0, share=2, timeout=300.0),)
