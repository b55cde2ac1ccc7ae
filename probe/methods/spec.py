"""What a row of the table of methods is. No torch here."""

from __future__ import annotations

from probe.losses.spec import LossSpec, Parameter
from probe.recipe.grammar import INNER

LOSS = Parameter(INNER, "erm", "the loss inside: a name, or a mapping with its parameters")


class MethodSpec(LossSpec):
    """One row of the table: a method around a loss.

    `implementation` is a subclass of `probe.methods.base.Method`, or "package.module:Class" (built in:
    "module:Class"). It is called as `Class(loss, **parameters)`, with `counts` (K class counts) if `needs`
    says "counts". The parameter `loss` is added to those that are given, unless it is one of them: a method
    with a loss of its own choice. `takes` and `owns_head` are those of the loss inside; a row's `frozen` is
    refused like its loss's where it says "no effect".
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if INNER not in self.defaults:
            object.__setattr__(self, "parameters", (*self.parameters, LOSS))
