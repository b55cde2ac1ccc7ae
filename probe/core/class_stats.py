"""Per-class mean norm and spread: exact from features, or kept as moving averages over batches.

For class k with samples h_i:   mu_k = mean h_i,   |s_k|^2 = mean |h_i - mu_k|^2   (the paper's notation).
Both are kept as the squared norms `mean_norm2` and `spread2` (K numbers each). For the Euclidean norm their
sum is the class's mean of |h|^2, which is all that the paper's MR² margins see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probe.core import collectives
from probe.core.ema import blend
from probe.errors import UserError

PIECE = 2**22  # numbers read at a time: 32 MB in float64
GROWTH = 4.0  # of a class's running statistic that a batch may count for, where outliers are held back


@dataclass(frozen=True)
class Groups:
    """The classes of a batch: C present classes, each row's place among them, and their sizes."""

    classes: Tensor  # C, ascending labels
    index: Tensor  # N, which of the C classes a row belongs to
    sizes: Tensor  # C, rows of each

    @classmethod
    def of(cls, targets: Tensor) -> Groups:
        """The groups of N labels."""
        return cls(*torch.unique(targets, return_inverse=True, return_counts=True))

    def sums(self, x: Tensor) -> Tensor:
        """Sum of the rows of each present class, for x of N x ...: C x ..."""
        return x.new_zeros((len(self.classes), *x.shape[1:])).index_add(0, self.index, x)

    def means(self, x: Tensor) -> Tensor:
        """Mean of the rows of each present class: C x ..."""
        return self.sums(x) / self.sizes.view(-1, *[1] * (x.ndim - 1)).to(x.dtype)

    def centred(self, x: Tensor, means: Tensor) -> Tensor:
        """Every row minus its class's mean (`means`: C x ...); differences within a class do not change."""
        return x - means.index_select(0, self.index)


def squared_norm(x: Tensor, p: float) -> Tensor:
    """|x_i|_p^2 of each of the N rows of x."""
    norms: Tensor = torch.linalg.vector_norm(x, p, dim=1)
    return norms.square()


@dataclass(frozen=True)
class ClassStats:
    """Exact statistics of a set of features, by class."""

    count: Tensor  # K
    mean_norm2: Tensor  # K: |mu_k|^2
    spread2: Tensor  # K: |s_k|^2, the mean squared distance to the class mean
    mean: Tensor | None = None  # K x D
    p: float = 2.0  # the norm's order

    @property
    def second_moment(self) -> Tensor:
        """|mu_k|^2 + |s_k|^2: what MR²'s margins and its bound are made of."""
        return self.mean_norm2 + self.spread2

    @classmethod
    def from_features(
        cls,
        X: Any,
        y: Any,
        num_classes: int,
        p: float = 2.0,
        *,
        across_processes: bool = False,
        robust: bool = False,
    ) -> ClassStats:
        """One pass in bounded memory, in float64, whatever the order of the rows.

        X is an N x D tensor, array or feature matrix, y holds N labels. Classes without rows get zeros. A
        norm other than p = 2 needs a second pass, because it is not a sum of moments. With `across_processes`
        every process gives its own part of the rows (some may have none) and all get the statistics of the
        whole. `robust` holds outliers back (`probe.core.robust_stats`); it takes a few passes.
        """
        y = torch.as_tensor(y)
        _check(X, y, num_classes, empty=across_processes)
        if robust:
            return cls._robust(X, y, num_classes, p, across_processes)
        count, mean, scatter = _accumulate(X, y, num_classes)
        if across_processes:
            count, mean, scatter = _joined(count, mean, scatter)
        if p != 2:
            scatter = mean.new_zeros(num_classes)
            for rows, labels in blocks(X, y):
                distances = squared_norm(rows - mean.index_select(0, labels), p)
                scatter.index_add_(0, labels, distances)
            scatter = collectives.total(scatter) if across_processes else scatter
        return cls(count, squared_norm(mean, p), scatter / count.clamp(min=1), mean, float(p)).checked()

    @classmethod
    def _robust(cls, X: Any, y: Tensor, num_classes: int, p: float, across_processes: bool) -> ClassStats:
        from probe.core.robust_stats import winsorised

        mean, spread2 = winsorised(X, y, num_classes, p, across_processes=across_processes)
        count = torch.bincount(y.to(spread2.device), minlength=num_classes).to(spread2)
        count = collectives.total(count) if across_processes else count
        return cls(count, squared_norm(mean, p), spread2, mean, float(p)).checked()

    def checked(self) -> ClassStats:
        """The same, if every number is finite."""
        bad = (~self.second_moment.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise UserError(f"the features of class {bad[0]} are not finite; extract them again")
        return self


def _check(X: Any, y: Tensor, num_classes: int, *, empty: bool) -> None:
    if len(X) != len(y):
        raise UserError(f"there are {len(X)} rows of features but {len(y)} labels")
    if len(y) == 0:
        if empty:
            return
        raise UserError("class statistics need at least one row")
    if int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise UserError(f"labels run from {int(y.min())} to {int(y.max())}, but num_classes is {num_classes}")


def device_of(X: Any) -> torch.device:
    """Where the rows are: a tensor's device, else the CPU."""
    return X.device if isinstance(X, Tensor) else torch.device("cpu")


def blocks(X: Any, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of X, which may be memory-mapped, with their labels."""
    size = max(1, PIECE // X.shape[1])
    start = 0
    pieces = X.blocks(size) if hasattr(X, "blocks") else (X[i : i + size] for i in range(0, len(X), size))
    for piece in pieces:
        rows = torch.as_tensor(piece).to(torch.float64)
        yield rows, y[start : start + len(rows)].to(rows.device)
        start += len(rows)


def _accumulate(X: Any, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, means and sums of squared distances to the mean; pieces are merged by Chan's update,
    which never subtracts two large sums, so it is stable for features far from zero."""
    like = torch.zeros(0, dtype=torch.float64, device=device_of(X))
    count, scatter = like.new_zeros(num_classes), like.new_zeros(num_classes)
    mean = like.new_zeros(num_classes, X.shape[1])
    for rows, labels in blocks(X, y):
        groups = Groups.of(labels)
        new_mean = groups.means(rows)
        new_scatter = groups.sums(groups.centred(rows, new_mean).square().sum(1))
        old, new, k = count[groups.classes], groups.sizes.to(count), groups.classes
        delta = new_mean - mean[k]
        mean[k] += delta * (new / (old + new)).unsqueeze(1)
        scatter[k] += new_scatter + delta.square().sum(1) * old * new / (old + new)
        count[k] = old + new
    return count, mean, scatter


def _joined(count: Tensor, mean: Tensor, scatter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of all processes as one: the joined mean first, then each part's scatter around it."""
    everyone = collectives.total(count)
    joined = collectives.total(mean * count.unsqueeze(1)) / everyone.clamp(min=1).unsqueeze(1)
    moved = scatter + count * (mean - joined).square().sum(1)
    return everyone, joined, collectives.total(moved)


class StatisticsModule(nn.Module):
    """A module whose buffers are statistics: never below float32, and restored exactly from a state dict.

    Buffers start as float32, grow to the feature size at the first batch and follow float64 input; loading
    therefore adopts the saved shape and dtype, and casting a model to half precision leaves them alone.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StatisticsModule:
        before = dict(self._buffers)

        def apply(tensor: Tensor) -> Tensor:
            try:
                return fn(tensor)
            except TypeError:  # a device without float64 (Apple's MPS)
                return fn(tensor.float())

        super()._apply(apply, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, own in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if own is not None and saved is not None:
                self._buffers[name] = torch.empty_like(saved, device=own.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def follow(self, dtype: torch.dtype) -> None:
        """Use float64 buffers from now on if the input is float64."""
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.is_floating_point() and dtype == torch.float64 != buffer.dtype:
                self._buffers[name] = buffer.to(dtype)


class RunningStats(StatisticsModule):
    """Moving averages over batches; call `update` once per training step.

    kind "norms"    averages |mu_k|^2 and |s_k|^2 of each batch, as the paper does. With m samples of a class
                    in a batch the two are biased by |s_k|^2/m, upwards and downwards (their sum is not).
    kind "moments"  averages mu_k and mean |h|^2 and forms the norms from those, so the bias all but vanishes.

    A class's first batch is copied; classes that are absent keep their values. `robust`: a batch counts for
    at most GROWTH times what is known of a class (kind "norms"), so that no single image owns a statistic.

    Averages that `start` with the statistics of a training set go on without bias: what a batch's class says
    is corrected for its m samples, and a class with a single one, which has no spread, keeps its values. The
    mean spread is then the same unit for batches of any size and make-up.
    """

    mean_norm2: Tensor
    spread2: Tensor
    seen: Tensor
    started: Tensor  # with the statistics of a training set? A buffer, so that a resumed training knows
    first: Tensor
    second: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        ema: float = 0.9,
        p: float = 2.0,
        kind: str = "norms",
        robust: bool = False,
    ) -> None:
        super().__init__()
        if kind == "moments" and p != 2:
            raise UserError(f'averages of "moments" exist for p = 2 only, not p = {p:g}; use "norms"')
        self.ema, self.p, self.kind, self.robust = ema, p, kind, robust
        self.register_buffer("mean_norm2", torch.zeros(num_classes))
        self.register_buffer("spread2", torch.zeros(num_classes))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("started", torch.tensor(False))
        if kind == "moments":
            self.register_buffer("first", torch.zeros(num_classes, 0))
            self.register_buffer("second", torch.zeros(num_classes))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(prefix + "started", torch.tensor(False))  # older checkpoints lack it
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def mean_spread(self) -> Tensor:
        """sbar, the mean spread of the classes seen so far."""
        return self.spread2.sum() / self.seen.sum().clamp(min=1)

    @torch.no_grad()
    def start(self, stats: ClassStats) -> None:
        """Begin with exact statistics of the training set, in place of the first batches'."""
        if stats.p != self.p:
            raise UserError(f"the statistics have p = {stats.p:g}, but this loss uses p = {self.p:g}")
        if len(stats.count) != len(self.seen):
            raise UserError(f"the statistics have {len(stats.count)} classes, the loss {len(self.seen)}")
        device = self.seen.device
        self.mean_norm2, self.spread2 = stats.mean_norm2.to(device).clone(), stats.spread2.to(device).clone()
        self.seen = (stats.count > 0).to(device)
        self.started = torch.tensor(True, device=device)
        if self.kind == "moments" and stats.mean is not None:
            self.first, self.second = stats.mean.to(device).clone(), stats.second_moment.to(device).clone()

    @torch.no_grad()
    def update(self, groups: Groups, features: Tensor, distances: Tensor | None = None) -> None:
        """One batch of all processes, N x D.

        `distances`, where known, are the summed squared distances between the pairs of each class (C
        numbers): sum_{i<j} |h_i - h_j|^2 = n^2 |s|^2, so that no class mean is needed.
        """
        self.follow(features.dtype)
        k = groups.classes
        if self.kind == "moments":
            self._update_moments(groups, features)
        else:
            mean_norm2, spread2 = self._norms(groups, features, distances)
            mean_norm2, spread2 = self._unbiased(groups, mean_norm2, spread2)
            if self.robust:
                mean_norm2 = self._held_back(mean_norm2, self.mean_norm2[k], self.seen[k])
                spread2 = self._held_back(spread2, self.spread2[k], self.seen[k])
            blend(self.mean_norm2, self.seen, k, mean_norm2, self.ema)
            blend(self.spread2, self.seen, k, spread2, self.ema)
        self.seen[k] = True

    def _norms(self, groups: Groups, features: Tensor, distances: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.p == 2 and distances is not None:
            spread2 = distances / groups.sizes.square()
            return (groups.means(squared_norm(features, 2)) - spread2).clamp(min=0), spread2
        means = groups.means(features)
        return squared_norm(means, self.p), groups.means(
            squared_norm(groups.centred(features, means), self.p)
        )

    def _unbiased(self, groups: Groups, mean_norm2: Tensor, spread2: Tensor) -> tuple[Tensor, Tensor]:
        """The norms of m samples per class, corrected where the averages were started: E |s|^2 is
        (1 - 1/m) |s_k|^2, and E |mu|^2 is |mu_k|^2 + |s_k|^2 / m (for p = 2; about so for other norms)."""
        k, m = groups.classes, groups.sizes.to(spread2)
        spread = spread2 * m / (m - 1).clamp(min=1)
        norm = (mean_norm2 - spread / m).clamp(min=0)
        silent = (m < 2) & self.seen[k]
        spread = torch.where(silent, self.spread2[k].to(spread), spread)
        norm = torch.where(silent, self.mean_norm2[k].to(norm), norm)
        return torch.where(self.started, norm, mean_norm2), torch.where(self.started, spread, spread2)

    @staticmethod
    def _held_back(new: Tensor, old: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen & (old > 0), torch.minimum(new, (GROWTH * old).to(new)), new)

    def _update_moments(self, groups: Groups, features: Tensor) -> None:
        k = groups.classes
        if self.first.shape[1] == 0:
            self.first = self.first.new_zeros(len(self.seen), features.shape[1])
        blend(self.first, self.seen, k, groups.means(features), self.ema)
        blend(self.second, self.seen, k, groups.means(squared_norm(features, 2)), self.ema)
        self.mean_norm2[k] = squared_norm(self.first[k], 2)
        self.spread2[k] = (self.second[k] - self.mean_norm2[k]).clamp(min=0)
