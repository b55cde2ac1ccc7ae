"""What the table of methods says about each, and how its parameters are checked. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from probe.errors import UserError, nearest


@dataclass(frozen=True)
class Parameter:
    """One option of a method, with what it means and what it may be."""

    name: str
    default: Any
    says: str
    low: float | None = None  # smallest allowed number
    high: float | None = None  # largest allowed number
    choices: tuple[str, ...] = ()

    def check(self, value: Any, method: str) -> Any:
        """The value, or an error that says what is allowed."""
        where = f"{method}: {self.name}"
        if self.choices:
            if value not in self.choices:
                raise UserError(f'{where} is "{value}"{nearest(str(value), self.choices)}')
        elif isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise UserError(f"{where} must be true or false, not {value!r}")
        elif isinstance(self.default, (int, float)):
            self._check_number(value, where)
        return value

    def _check_number(self, value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise UserError(f"{where} must be a number, not {value!r}")
        if isinstance(self.default, int) and value != int(value):
            raise UserError(f"{where} must be a whole number, not {value!r}")
        if self.low is not None and value < self.low:
            raise UserError(f"{where} must be at least {self.low:g}, not {value:g}")
        if self.high is not None and value > self.high:
            raise UserError(f"{where} must be at most {self.high:g}, not {value:g}")


@dataclass(frozen=True)
class LossSpec:
    """One row of the table."""

    name: str
    title: str
    paper: str
    implementation: str  # "module:Class" inside probe.losses
    parameters: tuple[Parameter, ...] = ()
    takes: str = "logits"  # or "cosines": what the first argument of the loss is
    needs: tuple[str, ...] = ()  # of "features", "counts", "gradients"
    frozen: str = "sgd"  # on cached features: "exact" (convex, solved exactly) | "sgd" | "no effect"
    why: str = "acts, but is not convex"  # the reason for `frozen`, one line
    balanced: str = "unchanged: it uses no counts"  # what it becomes when all classes have one size
    soft_targets: bool = False  # accepts N x K probabilities (Mixup, CutMix)
    owns_head: bool = False  # is the classifier a part of the loss?

    @property
    def defaults(self) -> dict[str, Any]:
        return {p.name: p.default for p in self.parameters}
