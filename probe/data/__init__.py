"""A name or a path becomes labelled images.

>>> d = probe.data.load("pets")        # a registered name, a folder or file of nearly any layout, a hub id
>>> d = probe.data.from_datasets(rows) # what Python holds already; also `from_frame`, `from_samples`
>>> image, label = d["train"][0]
>>> probe.data.register(probe.data.DatasetSpec("birds", ...))   # your own: see `probe.data.catalogue`

The submodule `catalogue` lists what is registered and imports nothing heavy; everything else is imported
when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from probe.data.catalogue import DatasetSpec, register
    from probe.data.dataset import Dataset, Split
    from probe.data.decode import BadImage
    from probe.data.from_memory import from_datasets, from_frame, from_samples
    from probe.data.holdout import holdout_digest, stratified_holdout
    from probe.data.images import Images
    from probe.data.load_dataset import load

__all__ = [
    "BadImage",
    "Dataset",
    "DatasetSpec",
    "Images",
    "Split",
    "from_datasets",
    "from_frame",
    "from_samples",
    "holdout_digest",
    "load",
    "register",
    "stratified_holdout",
]

if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "BadImage": "probe.data.decode",
            "Dataset": "probe.data.dataset",
            "Images": "probe.data.images",
            "DatasetSpec": "probe.data.catalogue",
            "Split": "probe.data.dataset",
            "from_datasets": "probe.data.from_memory",
            "from_frame": "probe.data.from_memory",
            "from_samples": "probe.data.from_memory",
            "holdout_digest": "probe.data.holdout",
            "load": "probe.data.load_dataset",
            "register": "probe.data.catalogue",
            "stratified_holdout": "probe.data.holdout",
        },
    )
