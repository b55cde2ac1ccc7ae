"""Features of a frozen backbone: computed once per image, kept on disk, named by what they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.features.extract import extract, find
    from probe.features.featureset import FeatureSet
    from probe.features.matrix import Matrix

__all__ = ["FeatureSet", "Matrix", "extract", "find"]

_HOMES = {"extract": "extract", "find": "extract", "FeatureSet": "featureset", "Matrix": "matrix"}


def __getattr__(name: str) -> Any:
    """Import torch only when features are asked for: `probe cache ls` comes through here too."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(f"{__name__}.{_HOMES[name]}")
    # Importing the submodule `extract` has put the module under its name: set every name of a home at once.
    globals().update({other: getattr(home, other) for other in _HOMES if _HOMES[other] == _HOMES[name]})
    return globals()[name]
