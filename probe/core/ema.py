"""The masked moving average: one value per class, of which a batch holds only some."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def blend(average: Tensor, seen: Tensor, classes: Tensor, new: Tensor, memory: float) -> None:
    """average <- memory * average + (1 - memory) * new for the classes of a batch, in place.

    `average` is K x ..., `seen` K booleans, `classes` C labels and `new` C x ... values of theirs. A class
    that has not been seen takes its new value as it is; classes that the batch lacks keep theirs.
    """
    old, new = average[classes], new.to(average.dtype)
    known = seen[classes].view(-1, *[1] * (new.ndim - 1))
    average[classes] = torch.where(known, memory * old + (1 - memory) * new, new)
