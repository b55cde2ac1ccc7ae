"""What methods remember beside weights: queues of keys.

All of it is in buffers, saved with every checkpoint. What is pushed is the joined batch of all processes in
its own order (`collectives.gather`), so that any number of processes has the same memory. A push puts a new
tensor into the old one's place: a backward pass may still need that one, and whoever repeats a step
(`StepLike.frozen_statistics`) gets it back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probe.errors import UserError


class Queue(nn.Module):
    """The last `size` keys (rows of D numbers) and their labels; the oldest make room."""

    keys: Tensor
    labels: Tensor
    pushed: Tensor  # rows so far, 1 number

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("pushed", torch.zeros(1, dtype=torch.int64))

    def held(self) -> tuple[Tensor, Tensor]:
        """m x D keys and m labels, as many as have been pushed, at most `size`."""
        filled = min(int(self.pushed), self.size)
        return self.keys[:filled], self.labels[:filled]

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor) -> None:
        """n x D keys and n labels of the joined batch, the oldest first."""
        start, n = int(self.pushed), len(keys)
        keys, labels = keys[-self.size :], labels[-self.size :]
        order = torch.arange(start + n - len(keys), start + n, device=keys.device) % self.size
        self.keys = self.keys.index_copy(0, order, keys.to(self.keys))
        self.labels = self.labels.index_copy(0, order, labels)
        self.pushed = self.pushed + n


class ClassQueue(nn.Module):
    """The last keys of every class, in places of its own: rare classes are not pushed out by frequent ones.

    `places` are K numbers, how many keys of each class are kept.
    """

    keys: Tensor
    labels: Tensor  # of every place
    places: Tensor
    pushed: Tensor  # K: rows of each class so far

    def __init__(self, places: Tensor, dim: int) -> None:
        super().__init__()
        total, k = int(places.sum()), len(places)
        labels = torch.arange(k).repeat_interleave(places)
        self.register_buffer("keys", torch.zeros(total, dim))
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("places", places.clone(), persistent=False)
        self.register_buffer("pushed", torch.zeros(k, dtype=torch.int64))

    def held(self) -> tuple[Tensor, Tensor]:
        """m x D keys that have been pushed and are kept, and their labels, class by class."""
        start = self.places.cumsum(0) - self.places
        place = torch.arange(len(self.labels), device=self.labels.device) - start[self.labels]
        filled = place < self.pushed[self.labels]
        return self.keys[filled], self.labels[filled]

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor) -> None:
        """n x D keys and n labels of the joined batch, the oldest first."""
        order = torch.argsort(labels, stable=True)
        sizes = torch.bincount(labels, minlength=len(self.places))
        own = labels[order]
        within = torch.arange(len(own), device=own.device) - (sizes.cumsum(0) - sizes)[own]
        last = within >= (sizes - self.places)[own]  # a class that brings more than it has places for
        order, own, within = order[last], own[last], within[last]
        start = self.places.cumsum(0) - self.places
        place = start[own] + (self.pushed[own] + within) % self.places[own]
        self.keys = self.keys.index_copy(0, place, keys[order].to(self.keys))
        self.pushed = self.pushed + sizes


def class_places(counts: Tensor, size: int, least: int) -> Tensor:
    """How many of `size` places each of K classes gets: `least`, and the rest by frequency (K integers).

    What is left of rounding down goes to the classes that lost most by it, the first of equals first.
    """
    k = len(counts)
    if size < least * k:
        raise UserError(f"a queue of {size} is too small for {least} keys of {k} classes; use {least * k}")
    share = (size - least * k) * counts.double() / counts.double().sum()
    places = share.floor().long()
    order = torch.argsort(share - places, descending=True, stable=True)
    places[order[: size - least * k - int(places.sum())]] += 1
    return places + least
