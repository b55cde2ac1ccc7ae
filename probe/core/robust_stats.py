"""Class means and spreads that single rows cannot own, for any order of rows and in bounded memory.

A row counts with at most a limit, median + WIDTH * scale, of its kind: first its norm, among all rows, then
its distance to its class's mean, among the rows of its class. Beyond the limit it is moved back to it (it is
winsorised, not dropped). The scale is 1.4826 times the median absolute deviation, which is the standard
deviation of a Gaussian, and at least a fifth of the median, because a few rows can agree by chance. Rows of a
Gaussian are almost never beyond the limit, so that clean features keep their plain statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from probe.core import collectives
from probe.core.class_stats import blocks, device_of, squared_norm

WIDTH = 5.0  # scales beyond the median
GAUSSIAN = 1.4826  # standard deviation / median absolute deviation
SMALLEST = 0.2  # of the median: the smallest scale
ROUNDS = 2  # mean, then distances: after the norms are limited the mean hardly moves any more


def winsorised(
    X: Any, y: Tensor, num_classes: int, p: float = 2.0, *, across_processes: bool = False
) -> tuple[Tensor, Tensor]:
    """K x D means and K spreads of N x D features, in float64; zeros for a class without rows.

    With `across_processes` every process gives its own part of the rows, and all get those of the whole.
    """
    everyone, total, own = _joining(len(y), across_processes)
    mine, y = y, everyone(y.to(device_of(X)))
    norms = everyone(_of_rows(X, mine, lambda rows, _: squared_norm(rows, 2).sqrt()))
    factor = _factor(norms, torch.zeros_like(y), 1)
    count = torch.bincount(y, minlength=num_classes).to(norms).clamp(min=1)
    mean = norms.new_zeros(num_classes, X.shape[1])
    pull = torch.ones_like(norms)
    distances = norms
    for _ in range(1 + ROUNDS):
        moved = torch.zeros_like(mean)
        for some, rows, labels in _limited(X, mine, factor[own]):
            gap = (rows - mean.index_select(0, labels)) * pull[own][some].unsqueeze(1)
            moved.index_add_(0, labels, gap)
        mean = mean + total(moved) / count.unsqueeze(1)
        parts = [
            squared_norm(rows - mean.index_select(0, labels), p).sqrt()
            for _, rows, labels in _limited(X, mine, factor[own])
        ]
        distances = everyone(torch.cat([norms.new_zeros(0), *parts]))
        pull = _factor(distances, y, num_classes)
        if bool((pull == 1).all()):
            break
    spread = mean.new_zeros(num_classes).index_add(0, y, (distances * pull).square())
    return mean, spread / count


def _joining(
    rows: int, across_processes: bool
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], slice]:
    """How numbers of one's own rows become those of all, how sums do, and where one's own rows are."""
    if not across_processes or collectives.processes() == 1:
        return lambda x: x, lambda x: x, slice(None)
    lengths = collectives.sizes(torch.empty(rows))
    start = sum(lengths[: torch.distributed.get_rank()])
    return lambda x: collectives.gather(x)[0], collectives.total, slice(start, start + rows)


def _of_rows(X: Any, y: Tensor, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A number for each row, block by block."""
    empty = torch.zeros(0, dtype=torch.float64, device=device_of(X))
    return torch.cat([empty, *(f(rows, labels) for rows, labels in blocks(X, y))])


def _limited(X: Any, y: Tensor, factor: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows, with their norms limited; which they are, and their labels."""
    start = 0
    for rows, labels in blocks(X, y):
        some = slice(start, start + len(rows))
        yield some, rows * factor[some].unsqueeze(1), labels
        start = some.stop


def _factor(values: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """N: what each value is multiplied by to be within the limit of its class."""
    middle = _medians(values, y, num_classes)
    deviation = _medians((values - middle[y]).abs(), y, num_classes)
    limit = middle + WIDTH * torch.maximum(GAUSSIAN * deviation, SMALLEST * middle)
    return torch.where(values > limit[y], limit[y] / values, 1)


def _medians(values: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """K: the median of each class's values; 0 for a class without any."""
    order = torch.argsort(values)
    order = order[torch.argsort(y[order], stable=True)]  # class by class, each rising
    count = torch.bincount(y, minlength=num_classes)
    first = count.cumsum(0) - count
    last = len(order) - 1
    low, high = (order[(first + i.clamp(min=0)).clamp(max=last)] for i in ((count - 1) // 2, count // 2))
    return torch.where(count > 0, (values[low] + values[high]) / 2, 0)
