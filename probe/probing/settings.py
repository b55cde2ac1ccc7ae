"""What probing must be told: a loss with its parameters, and the settings of an exact solver.

The Protocols are what functions ask for, and the sections of a recipe satisfy them; the dataclasses are for
callers without a recipe, such as the scikit-learn estimator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from probe.errors import UserError


class LossSettings(Protocol):
    """A name of `probe methods`, and the parameters that are given."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


class SolverSettings(Protocol):
    """An exact solver, by its name in `probe.probing.exact.SOLVERS`, and its numbers."""

    @property
    def name(self) -> str: ...

    @property
    def l2(self) -> float | None: ...  # None: chosen on the holdout

    @property
    def grid(self) -> str: ...  # "coarse" or "full": which values of l2 are tried

    @property
    def tol(self) -> float: ...  # lbfgs: certified relative excess of the objective

    @property
    def k(self) -> int: ...  # neighbours of k-NN

    @property
    def weighted(self) -> bool: ...  # k-NN: votes weighted by similarity


@dataclass(frozen=True)
class LossChoice:
    """See `LossSettings`."""

    name: str = "erm"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactSolver:
    """See `SolverSettings`."""

    name: str = "lbfgs"
    l2: float | None = None
    grid: str = "coarse"
    tol: float = 1e-7
    k: int = 20
    weighted: bool = True

    def __post_init__(self) -> None:
        for name, allowed, rule in (
            ("l2", lambda v: v is None or 0 < v < math.inf, "greater than 0"),
            ("tol", lambda v: 0 <= v < 1, "at least 0 and less than 1"),
            ("k", lambda v: v > 0, "greater than 0"),
        ):
            try:
                fine = allowed(getattr(self, name))
            except TypeError:  # a word, say
                fine = False
            if not fine:
                raise UserError(f"solver {self.name}: {name} must be {rule}, not {getattr(self, name)!r}")
