"""Class statistics before the first step: a pass over training samples, without gradient or augmentation.

It is a function of the weights and the seed, so that a training that was killed repeats it to the same bits,
and any number of processes find the same statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probe.core.class_stats import ClassStats
from probe.losses.spec import NeededStats
from probe.system.progress import bar
from probe.train.evaluate import features
from probe.train.inputs.loaders import SampleLoader
from probe.train.seeding import derive_seed
from probe.train.step import Diverged

if TYPE_CHECKING:
    from probe.train.loop import Training

ROWS = 10_000  # samples that are looked at, at most: statistics of a class need tens, not thousands


def prepare(training: Training, data: SampleLoader) -> None:
    """Give the method the class statistics of these samples, where it starts from such."""
    wanted = training.method.wanted_stats()
    if wanted is not None:
        training.method.prepare(class_statistics(training, data, wanted))


def class_statistics(training: Training, data: SampleLoader, wanted: NeededStats) -> ClassStats:
    """The statistics of these samples' classes, by the network as it is; the same on every process."""
    labels = np.asarray(data.labels)
    rows = chosen(labels, training.seed)
    with bar("class statistics", len(rows), "samples", show=training.show) as advance:
        found = features(training.objective, data, rows, training.accelerator, advance)
    bad = (~found.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise Diverged(
            f"before step 1 the features of {len(bad)} of {len(rows)} samples are not finite, e.g. of "
            f"{data.ids[rows[bad[0]]]}. Try other weights, or leave these samples out"
        )
    return ClassStats.from_features(
        found, labels[rows], training.task.num_classes, p=wanted.p, robust=wanted.robust
    )


def chosen(labels: NDArray[np.int64], seed: int, most: int = ROWS) -> NDArray[np.int64]:
    """Rising row numbers: all of the N labels, or about `most`, equally many of each class that has them."""
    if len(labels) <= most:
        return np.arange(len(labels))
    order = np.random.default_rng(derive_seed(seed, "class pass")).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its class
    each = max(2, most // int((counts > 0).sum()))
    return np.sort(order[place < each])
