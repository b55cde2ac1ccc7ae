"""Features of a frozen backbone: computed once per image, kept on disk, named by what they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from probe.features.extraction import extract, find
    from probe.features.feature_set import FeatureSet, side_by_side
    from probe.features.matrix import Matrix, SideBySide

__all__ = ["FeatureSet", "Matrix", "SideBySide", "extract", "find", "side_by_side"]

# torch is only imported when features are asked for: `probe cache ls` comes through here too.
if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "extract": "probe.features.extraction",
            "find": "probe.features.extraction",
            "FeatureSet": "probe.features.feature_set",
            "side_by_side": "probe.features.feature_set",
            "Matrix": "probe.features.matrix",
            "SideBySide": "probe.features.matrix",
        },
    )
