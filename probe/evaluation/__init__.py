"""Accuracy by class and by group, with error bars, and paired comparisons of methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from probe.evaluation.summary import evaluate

__all__ = ["evaluate"]

if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(__name__, {"evaluate": "probe.evaluation.summary"})
