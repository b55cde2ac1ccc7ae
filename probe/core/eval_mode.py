"""A network in evaluation mode for a while, and then exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """No dropout and no moving batch statistics inside the block.

    Each module gets its own mode back: batch-norms that were frozen stay in evaluation mode.
    """
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
