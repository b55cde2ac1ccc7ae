"""What the catalogue says about each loss, and how its parameters are checked. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from math import isfinite
from typing import Any

from probe.errors import UserError, nearest

# What a parameter stands for, where a caller has to know: it fills the first two in where they are not given.
HELD_OUT_FREQUENCY = "held-out frequency"  # K numbers: mean held-out probability of each class's own samples
FEATURE_SIZE = "feature size"  # D
NORM_ORDER = "norm order"  # p of the class statistics
ROBUST = "robust statistics"  # are outliers held back in the class statistics?

WORDS = {
    "takes": ("logits", "cosines"),
    "needs": ("features", "counts", "gradients", "views", "first stage"),
    "frozen": ("exact", "sgd", "no effect"),
}


@dataclass(frozen=True)
class Parameter:
    """One option of a loss or method, with what it means and what it may be."""

    name: str
    default: Any
    says: str
    low: float | None = None  # smallest allowed number
    high: float | None = None  # largest allowed number
    choices: tuple[str, ...] = ()
    role: str = ""  # HELD_OUT_FREQUENCY, FEATURE_SIZE, NORM_ORDER, ROBUST, or nothing callers need to know
    # The default in this package's trainings, which start from class statistics of the whole training set and
    # have a warm-up; None: the same one.
    whole_set: Any = None
    scratch: Any = None  # the default where a network is trained from scratch; None: no other one
    only: tuple[str, str] | None = None  # (another parameter, its value) where this one is read; None: always

    def check(self, value: Any, method: str) -> Any:
        """The value, or an error that says what is allowed."""
        where = f"{method}: {self.name}"
        if self.choices:
            if value not in self.choices:
                raise UserError(f'{where} is "{value}"{nearest(str(value), self.choices)}')
        elif isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise UserError(f"{where} must be true or false, not {value!r}")
        elif isinstance(self.default, (int, float)) or (self.low is not None and value is not None):
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
class NeededStats:
    """Which class statistics a loss takes as its `stats`."""

    p: float = 2.0  # order of the norm
    scaled: bool = False  # of scaled features, where a loss that owns its head lives; else the encoder's own
    robust: bool = False  # with outliers held back


@dataclass(frozen=True)
class LossSpec:
    """One row of the catalogue."""

    name: str
    title: str
    paper: str
    implementation: str | type[Any]  # "package.module:Class" (built in: "module:Class"), or the class itself
    parameters: tuple[Parameter, ...] = ()
    takes: str = "logits"  # or "cosines": what the first argument of the loss is
    needs: tuple[str, ...] = ()  # of "features", "counts", "gradients", "views", "first stage"
    frozen: str = "sgd"  # on cached features: "exact" (convex, solved exactly) | "sgd" | "no effect"
    why: str = "acts, but is not convex"  # the reason for `frozen`, one line
    balanced: str = "unchanged: it uses no counts"  # what it becomes when all classes have one size
    soft_targets: bool = False  # accepts N x K probabilities (Mixup, CutMix)
    owns_head: bool = False  # is the classifier a part of the loss?
    groups: bool = False  # can it act on groups that are not the classes? See `Loss.see_groups`
    fixed_head: bool = False  # is it for class vectors that are not trained (a simplex, head "etf")?
    version: int = 1  # of the meaning of its defaults: a stored run of another one is not reused

    def __post_init__(self) -> None:
        for field, words in WORDS.items():
            value = getattr(self, field)
            for word in (value,) if isinstance(value, str) else value:
                if word not in words:
                    raise UserError(f'{self.name}: {field} is "{word}"{nearest(word, words)}')

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of every parameter."""
        return {p.name: p.default for p in self.parameters}

    @property
    def whole_set_defaults(self) -> dict[str, Any]:
        """The defaults that are others in trainings, with class statistics of the whole training set."""
        return {p.name: p.whole_set for p in self.parameters if p.whole_set is not None}

    @property
    def scratch_defaults(self) -> dict[str, Any]:
        """The defaults that are others where a network is trained from scratch."""
        return {p.name: p.scratch for p in self.parameters if p.scratch is not None}

    def load(self, home: str = "") -> type[Any]:
        """The class behind the row; the modules of built-in rows are those of the package `home`."""
        if not isinstance(self.implementation, str):
            return self.implementation
        module, _, name = self.implementation.partition(":")
        found: type[Any] = getattr(import_module(f"{home}.{module}" if home else module), name)
        return found

    def load_from_outside(self, kind: str, base: type[Any]) -> type[Any]:
        """The class behind a row of another package, checked, because its row may name anything.

        `kind` is "loss" or "method", and `base` what the class must extend.
        """
        where = f'{kind} "{self.name}": {self.place}'
        try:
            found = self.load()
        except Exception as error:  # whatever somebody else's module does
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{where} cannot be imported: {reason}") from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise UserError(f"{where} must be a subclass of {base.__module__}.{base.__name__}")
        return found

    @property
    def place(self) -> str:
        """Where the class is: "module:Class"."""
        made = self.implementation
        return made if isinstance(made, str) else f"{made.__module__}:{made.__qualname__}"

    def row(self) -> dict[str, Any]:
        """The row in plain values, for lists and JSON."""
        return {**asdict(self), "implementation": self.place}

    def resolve(
        self, given: Mapping[str, Any], *, whole_set: bool = False, scratch: bool = False
    ) -> dict[str, Any]:
        """All parameters: the defaults, replaced by what was given and is allowed.

        `whole_set`: the defaults for class statistics that come from the whole training set; `scratch`: those
        for networks from scratch.
        """
        known = {p.name: p for p in self.parameters}
        for key in given:
            if key not in known:
                hint = nearest(key, known) if known else "; it has none"
                raise UserError(f'{self.name} has no parameter "{key}"{hint}')
        checked = {key: known[key].check(value, self.name) for key, value in given.items()}
        in_runs = self.whole_set_defaults if whole_set else {}
        found = {**self.defaults, **in_runs, **(self.scratch_defaults if scratch else {}), **checked}
        for key, value in checked.items():
            name, wanted = known[key].only or ("", "")
            if name and found[name] != wanted and value != known[key].default:
                raise UserError(
                    f"{self.name}: {key} is for {name}={wanted} and has no effect here; leave it out"
                )
        return found

    def parameter_for(self, role: str) -> str | None:
        """The name of the parameter with this role, if there is one."""
        return next((p.name for p in self.parameters if p.role == role), None)

    def unfilled(self, role: str, params: Mapping[str, Any]) -> str | None:
        """The name of the parameter with this role if the (resolved) `params` leave it to the caller."""
        name = self.parameter_for(role)
        return name if name is not None and params.get(name) is None else None

    def needed_stats(self, params: Mapping[str, Any]) -> NeededStats | None:
        """Which class statistics go with these (resolved) parameters; None: it uses none."""
        if "features" not in self.needs:
            return None
        order, robust = self.parameter_for(NORM_ORDER), self.parameter_for(ROBUST)
        return NeededStats(
            p=2.0 if order is None else params[order],
            scaled=self.owns_head,
            robust=robust is not None and params[robust],
        )
