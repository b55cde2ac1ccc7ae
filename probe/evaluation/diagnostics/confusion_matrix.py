"""Which classes are mistaken for which: the matrix of counts, with classes that are confused side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 30  # classes; of more, those that take part in the most mistakes


def block(
    prediction: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int, most: int = MOST
) -> dict[str, Any]:
    """Counts by true (rows) and predicted class (columns) of at most `most` of the K classes.

    `classes` are their indices in the order of rows and columns, `n` the test images of each: a row need not
    add up to it, because images may be mistaken for classes that are left out.
    """
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, (labels, prediction), 1)
    mistakes = counts - np.diag(np.diag(counts))
    chosen = np.argsort(-(mistakes.sum(axis=0) + mistakes.sum(axis=1)), kind="stable")[:most]
    order = chosen[clustered(mistakes[np.ix_(chosen, chosen)])]
    return {
        "classes": order.tolist(),
        "counts": counts[np.ix_(order, order)].tolist(),
        "n": counts.sum(axis=1)[order].tolist(),
    }


def clustered(mistakes: NDArray[np.int64]) -> NDArray[np.int64]:
    """An order of the classes (of a K x K matrix) in which those that are confused are neighbours."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(mistakes) < 3:
        return np.arange(len(mistakes))
    both = (mistakes + mistakes.T).astype(np.float64)
    distance = 1 / (1 + both)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return np.asarray(leaves_list(tree), dtype=np.int64)
