"""A name or a path becomes labelled images.

>>> d = probe.data.load("pets")        # a registered name, an image folder, parquet files, a hub id
>>> image, label = d["train"][0]

The submodule `catalogue` lists what is registered and imports nothing heavy; everything else is imported
when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.data.cut import cut_digest, stratified_cut
    from probe.data.decode import BadImage
    from probe.data.loading import load
    from probe.data.split import Dataset, Split

__all__ = ["BadImage", "Dataset", "Split", "cut_digest", "load", "stratified_cut"]

_HOME = {
    "BadImage": "decode",
    "Dataset": "split",
    "Split": "split",
    "cut_digest": "cut",
    "load": "loading",
    "stratified_cut": "cut",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
