"""Features without a probe: into the cache and, where asked, into files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.features import FeatureSet, files
from probe.features.cache_key import slug
from probe.features.views import CENTER, View
from probe.recipe import Recipe
from probe.runs.inputs import gather
from probe.system.world import rank


def extract(
    recipe: Recipe, *, cache: Path | None = None, kind: str | None = None, out: Path | None = None
) -> list[dict[str, Any]]:
    """One row for each split and view; with `kind` (parquet or npy) also files, in `out`.

    The features of several backbones, or of several taps, stand side by side in the files.
    """
    folder = Path("features", slug([recipe.backbone.title, recipe.data.name])) if out is None else out
    if kind is not None:
        files.check(folder, kind)  # before minutes of extraction
    inputs = gather(recipe, cache=cache)
    sets = {
        _name(split, view): (split, view, f) for view, by in inputs.by_view.items() for split, f in by.items()
    }
    written: dict[str, Path] = {}
    if kind is not None and rank() == 0:
        written = files.write({name: f for name, (_, _, f) in sets.items()}, folder, kind)
    return [
        {**_row(split, view, f), **({"file": str(written[name])} if name in written else {})}
        for name, (split, view, f) in sets.items()
    ]


def _name(split: str, view: View) -> str:
    return split if view == CENTER else f"{split}-{view.name}"


def _row(split: str, view: View, f: FeatureSet) -> dict[str, Any]:
    return {
        "split": split,
        "view": view.name,
        "rows": len(f.y),
        "dim": f.X.shape[1],
        "cached": f.cached,
        "seconds": f.seconds,
    }
