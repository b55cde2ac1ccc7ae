"""The validated description of a run, from YAML or flags."""

from probe.recipe.schema import (
    LOSSLESS,
    RANKINGS,
    BackboneConfig,
    DataConfig,
    FeaturesConfig,
    MethodConfig,
    Recipe,
    Reference,
    SolverConfig,
    build,
    group_source,
    override,
    parse_yaml,
    place,
    read,
)

__all__ = [
    "LOSSLESS",
    "RANKINGS",
    "BackboneConfig",
    "DataConfig",
    "FeaturesConfig",
    "MethodConfig",
    "Recipe",
    "Reference",
    "SolverConfig",
    "build",
    "group_source",
    "override",
    "parse_yaml",
    "place",
    "read",
]
