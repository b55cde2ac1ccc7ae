"""Training by gradient steps: probing on cached features (`probe_sgd`) and fine-tuning (`finetune`).

`settings` is what a recipe may say about it, and imports nothing heavy; the rest is imported when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.train.finetune import Tuned, finetune
    from probe.train.sgd import probe_sgd

__all__ = ["Tuned", "finetune", "probe_sgd"]

_HOMES = {"Tuned": "finetune", "finetune": "finetune", "probe_sgd": "sgd"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # importing the submodule `finetune` has put the module under this name
    return value
