"""Data that Python already holds: objects of `datasets`, DataFrames, data sets of torchvision's kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.data.assemble import assemble
from probe.data.dataset import Dataset
from probe.data.request import Request

if TYPE_CHECKING:
    import datasets

MEMORY = "in memory"


def from_datasets(
    data: datasets.Dataset | datasets.DatasetDict,
    *,
    image: str | None = None,
    label: str | None = None,
    splits: Mapping[str, str] | None = None,
    test_fraction: float | None = None,
    name: str = "dataset",
) -> Dataset:
    """A `Dataset` or `DatasetDict` of the `datasets` library; what has no test split gets one.

    >>> d = probe.data.from_datasets(datasets.load_dataset("owner/name"), label="species")
    """
    from probe.data.sources import dataset_objects

    ask = Request.of(None, image=image, label=label, splits=splits)
    return assemble(name, None, dataset_objects.read(data, ask), MEMORY, test_fraction=test_fraction)


def from_frame(
    frame: Any,
    *,
    root: str | Path = ".",
    image: str | None = None,
    label: str | None = None,
    splits: Mapping[str, str] | None = None,
    test_fraction: float | None = None,
    cache: str | Path | None = None,
    name: str = "frame",
) -> Dataset:
    """A DataFrame of paths (below `root`) and labels; a column `split`, or one frame each, tells splits.

    >>> probe.data.from_frame({"train": known, "test": new}, root="photos", label="species")
    """
    import pyarrow as pa

    from probe.data import split_names
    from probe.data.sources import path_tables

    folder = Path(root).expanduser().resolve()
    ask = Request.of(None, image=image, label=label, splits=splits, cache=cache)
    frames = dict(frame) if isinstance(frame, Mapping) else {"train": frame}
    chosen = split_names.choose(frames, ask.want, "the mapping of frames", ask.must)
    tables = {
        key: [(folder / f"frame {key}", pa.Table.from_pandas(one, preserve_index=False))]
        for key, one in chosen.items()
    }
    return assemble(
        name, None, path_tables.read_tables(tables, folder, ask), str(folder), test_fraction=test_fraction
    )


def from_samples(
    train: Any,
    test: Any = None,
    val: Any = None,
    *,
    test_fraction: float | None = None,
    name: str = "samples",
) -> Dataset:
    """Data sets of torchvision's kind: `train[i]` is (picture, number of its class), without a transform.

    Class names are those of `train.classes`, if it has them.
    """
    from probe.data.sources import in_memory

    given = {"train": train, "val": val, "test": test}
    found = in_memory.read({key: one for key, one in given.items() if one is not None})
    return assemble(name, None, found, MEMORY, test_fraction=test_fraction)
