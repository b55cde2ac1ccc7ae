"""Is a stored run still the answer to its recipe?

A recipe names its data, weights, method and groups; what those names stand for can change. So a run is
reused only where the fingerprints it stored are those of what its names mean now. Digests of unchanged files
are remembered (`probe.system.digest_index`), and every data set and backbone is loaded once, so asking is
cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backbones.reading import expanded
from probe import data, methods
from probe.errors import UserError
from probe.recipe import Recipe, build
from probe.runs import draws, first_stage, groups, inputs
from probe.runs.folder import RunFolder
from probe.system.cache_dir import OTHER_RUN, check_owner
from probe.system.safe_text import one_line


def stored(recipe: Recipe, folder: RunFolder) -> dict[str, Any] | None:
    """The result in `folder` if it is whole and of exactly this recipe, else None."""
    check_owner(folder.path, way_out=OTHER_RUN)  # which a new run could only replace
    if not folder.has_predictions:
        return None
    try:
        result = folder.result()
        same = build(result["recipe"]).digest == recipe.digest
    except (UserError, KeyError, TypeError):
        return None
    return result if same and result["test"].get("groups") else None


def current(recipe: Recipe, folder: RunFolder, present: Present) -> dict[str, Any] | None:
    """The result in `folder` if it is still that of its recipe; what has changed is said in one line."""
    result = stored(recipe, folder)
    return result if result is not None and _fresh(recipe, result, present, folder) else None


def _fresh(recipe: Recipe, result: Mapping[str, Any], present: Present, folder: RunFolder) -> bool:
    try:
        change = present.change(recipe, result)
    except UserError as error:
        if not present.gone(recipe):
            change = str(error)
        else:  # nothing is left that could have changed
            print(one_line(f"{folder.name} is reused unchecked: {error}"), file=sys.stderr)
            return True
    except (LookupError, TypeError, AttributeError, OSError) as error:
        change = f"its result cannot be understood ({type(error).__name__})"
    if change is not None:
        print(one_line(f"{folder.name} is stale, so it is run again: {change}"), file=sys.stderr)
    return change is None


@dataclass
class Present:
    """What the names in recipes mean now."""

    cache: Path | None = None
    _data: dict[str, data.Dataset] = field(default_factory=dict)
    _weights: dict[str, str] = field(default_factory=dict)

    def change(self, recipe: Recipe, result: Mapping[str, Any]) -> str | None:
        """What is no longer as the stored run found it; None when all is."""
        now = methods.catalogue.versions(recipe.method.name, recipe.method.params)
        if (result.get("method_versions") or {}) != now:
            return f"{recipe.method.name} has another meaning now than when it was stored"
        found = self.data(recipe)
        before = result["data"].get("fingerprints") or {}
        for split in {**before, **dict.fromkeys(found.splits)}:
            if split not in found.splits or before.get(split) != found[split].fingerprint:
                return f'the {split} images of "{recipe.data.name}" have changed'
        if (change := self._draws(recipe, result["data"].get("draws"))) is not None:
            return change
        if result["backbone"].get("fingerprint") != self.weights(recipe):
            return f"the weights of {recipe.backbone.title} have changed"
        if recipe.from_scratch and result["groups_by"] == "crossfit":
            return f"an earlier version ranked its classes by {recipe.backbone.name} before it was trained"
        given = groups.given(recipe.groups, found.class_names)
        if given is not None and _named(given, found.class_names) != _members(result):
            return f"the groups of {groups.origin(recipe.groups)['groups_from']} have changed"
        return None

    def _draws(self, recipe: Recipe, before: Sequence[Mapping[str, Any]] | None) -> str | None:
        """The same of the images that each further seed of a few-shot run learns from."""
        further = draws.further(recipe)
        if further and not before:
            return "an earlier version gave all seeds the same draw of images"
        now = [self.data(drawn)["train"].fingerprint for drawn in further]
        if now != [row["train"] for row in before or ()][1:]:
            return f'the train images of "{recipe.data.name}" have changed'
        return None

    def gone(self, recipe: Recipe) -> bool:
        """Is the data out of reach, so that only the stored run is left of it?"""
        return not expanded(recipe.data.root or recipe.data.name).exists()

    def data(self, recipe: Recipe) -> data.Dataset:
        """The data set that the recipe names."""
        key = f"{recipe.data.model_dump_json()} {draws.number(recipe)}"
        if key not in self._data:
            self._data[key] = inputs.load_data(recipe, self.cache)
        return self._data[key]

    def weights(self, recipe: Recipe) -> str:
        """The fingerprint of the backbone, or of all backbones whose features stand side by side."""
        found = []
        for part in recipe.backbone.parts:
            key = f"{part.model_dump_json()} {first_stage.named(recipe.method)}"
            if key not in self._weights:
                b = inputs.backbone_from_cache(recipe, part, self.cache)
                self._weights[key] = (b or inputs.load_backbone(recipe, part, self.cache)).fingerprint
            found.append(self._weights[key])
        return inputs.joint_fingerprint(found)


def _named(given: Mapping[str, list[int]], class_names: tuple[str, ...]) -> dict[str, list[str]]:
    return {name: [class_names[k] for k in members] for name, members in given.items()}


def _members(result: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: group["classes"] for name, group in result["test"]["groups"].items()}
