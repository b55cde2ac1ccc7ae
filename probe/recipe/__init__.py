"""The validated description of a run, from YAML or flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from probe.recipe.parse import build, override, parse_yaml, place, read
    from probe.recipe.schema import (
        COUNT_GROUPS,
        LOSSLESS,
        RANKINGS,
        BackboneConfig,
        DataConfig,
        FeaturesConfig,
        MethodConfig,
        PartConfig,
        Recipe,
        Reference,
        SelectConfig,
        SolverConfig,
        group_source,
    )

RESULT = "result.json"  # the file of a run folder that groups may name; see `probe.runs.folder`
SCHEMA = (
    *("COUNT_GROUPS", "LOSSLESS", "RANKINGS", "Recipe", "Reference", "group_source"),
    *("BackboneConfig", "DataConfig", "FeaturesConfig", "MethodConfig", "PartConfig"),
    *("SelectConfig", "SolverConfig"),
)
PARSE = ("build", "override", "parse_yaml", "place", "read")

__all__ = [
    "COUNT_GROUPS",
    "LOSSLESS",
    "RANKINGS",
    "RESULT",
    "BackboneConfig",
    "DataConfig",
    "FeaturesConfig",
    "MethodConfig",
    "PartConfig",
    "Recipe",
    "Reference",
    "SelectConfig",
    "SolverConfig",
    "build",
    "group_source",
    "override",
    "parse_yaml",
    "place",
    "read",
]

# Lazy, so that the grammar of methods can be used without the schema's libraries.
if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(
        __name__,
        {**dict.fromkeys(SCHEMA, "probe.recipe.schema"), **dict.fromkeys(PARSE, "probe.recipe.parse")},
    )
