"""The features of one split, with the labels and ids they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.features.matrix import Matrix, SideBySide

if TYPE_CHECKING:
    import datasets
    import pandas
    import pyarrow

    from probe.core.class_stats import ClassStats


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Row i of `X` is the image `ids[i]` of class `class_names[y[i]]`.

    >>> f = probe.features.extract(backbone, data["train"])
    >>> f.X[:5], f.y[:5], f.ids[:5]
    """

    X: Matrix | SideBySide  # N x dim, memory-mapped
    y: NDArray[np.int64]  # N
    ids: list[str]  # N
    class_names: tuple[str, ...]
    name: str  # the split's
    key: str  # what the features were made of, hashed: the cache entry
    cached: bool = False  # found, not computed
    seconds: float = 0.0  # spent on finding or computing them
    skipped: list[str] = field(default_factory=list)  # ids of images that could not be read

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """K, whether or not every class has images here."""
        return len(self.class_names)

    def class_stats(self, p: float = 2.0, *, robust: bool = False) -> ClassStats:
        """Exact count, mean norm and spread of every class, in one pass over the shards.

        `robust` holds outliers back, in a few passes.
        """
        from probe.core.class_stats import ClassStats

        return ClassStats.from_features(self.X, self.y, self.num_classes, p=p, robust=robust)

    def select(self, indices: Sequence[int] | NDArray[Any]) -> FeatureSet:
        """A view of some rows, by position or mask; no feature is copied."""
        rows = np.arange(len(self))[np.asarray(indices, dtype=None if len(indices) else np.int64)]
        return replace(
            self, X=self.X.view(rows), y=self.y[rows], ids=[self.ids[i] for i in rows.tolist()], skipped=[]
        )

    def to_arrow(self, start: int = 0, stop: int | None = None) -> pyarrow.Table:
        """Rows `start` to `stop` (None: the end): `id`, `label` with the classes' names, `features`."""
        import pyarrow as pa

        from probe.system import class_columns

        rows = slice(start, stop)
        block = self.X[rows].numpy()
        table = pa.table(
            {
                "id": pa.array(self.ids[rows], pa.string()),
                "label": pa.array(self.y[rows]),
                "features": pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), self.X.shape[1]),
            }
        )
        return class_columns.named(table, self.class_names, ("label",))

    def to_dataset(self) -> datasets.Dataset:
        """A `datasets.Dataset`, in memory, with the columns `id`, `label` (a ClassLabel) and `features`.

        >>> f.to_dataset().with_format("torch")[:8]["features"]
        """
        from datasets import Dataset

        return Dataset(self.to_arrow())

    def to_pandas(self) -> pandas.DataFrame:
        """A `pandas.DataFrame`, in memory: indexed by `id`; `label`, a category, and f0, f1, ... (float32).

        >>> f.to_pandas().groupby("label", observed=True).mean()
        """
        import pandas as pd

        names = [f"f{i}" for i in range(self.X.shape[1])]
        frame = pd.DataFrame(np.asarray(self.X), index=pd.Index(self.ids, name="id"), columns=names)
        frame.insert(0, "label", pd.Categorical.from_codes(self.y, categories=list(self.class_names)))
        return frame


def side_by_side(parts: Sequence[FeatureSet]) -> FeatureSet:
    """The features of one split by several backbones or taps, as one: their columns in this order.

    >>> side_by_side([extract(a, split), extract(b, split)]).X.shape  # N x (dim of a + dim of b)
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(part.ids != first.ids or not np.array_equal(part.y, first.y) for part in parts):
        raise UserError(f"the parts of {first.name} are not of the same images, in the same order")
    columns = [
        matrix for part in parts for matrix in (part.X.parts if isinstance(part.X, SideBySide) else (part.X,))
    ]
    return replace(
        first,
        X=SideBySide(columns),
        key=" ".join(part.key for part in parts),
        cached=all(part.cached for part in parts),
        seconds=sum(part.seconds for part in parts),
    )
