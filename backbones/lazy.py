"""Names of a package that are imported when they are first used, so that importing the package is instant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package: each name with the module that holds it.

    A home that ends in the name itself is that module: `{"data": "probe.data"}`.

    Type checkers must not see them, or they accept every name as `Any`; give them imports instead:

    >>> if not TYPE_CHECKING:
    ...     __getattr__, __dir__ = attributes(__name__, {"load": "backbones.load_backbone"})
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return get, lambda: sorted(homes)
