"""A tiny real job: painted images, a tiny ViT of timm's, recipes for every way of learning."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe import recipe
from probe.recipe import Recipe
from probe.system.atomic import TEMPORARY
from tests.support.painted_images import COLOURS, paint
from tests.support.training_world import tiny_vit

EVERY_STEP = 1e-9  # minutes between checkpoints
BACKBONE_SIZE = 32  # pixels

WAYS: dict[str, dict[str, Any]] = {
    "exact": {"solver": {"l2": 1.0}},
    "sgd": {"solver": {"name": "sgd", "l2": 1.0}, "train": {"lr": 1.0, "epochs": 8}},
    "finetune": {"finetune": True, "solver": {"l2": 1.0}, "train": {"lr": 1e-3, "epochs": 2, "workers": 0}},
}
TIMES = {"timing", "seconds", "reused"}  # what may differ between two runs of the same recipe


@dataclass(frozen=True)
class World:
    """A folder with data, weights and a filled cache."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> World:
        rng = np.random.default_rng(0)
        for split, number in (("train", 12), ("test", 6)):
            for name in list(COLOURS)[:3]:
                paint(root / "colours" / split / name, COLOURS[name], number, rng)
        tiny_vit(root / "vit")
        return cls(root)

    def recipe(self, way: str, **more: Any) -> Recipe:
        content = {
            "backbone": {"name": f"timm:{self.root / 'vit'}", "image_size": BACKBONE_SIZE},
            "data": str(self.root / "colours"),
            "method": "mr2",
            "features": {"batch_size": 4, "workers": 1},
            **WAYS[way],
            **more,
        }
        if "train" in content:  # an exact probe has none, and refuses settings without effect
            steps = {"batch_size": 8, "checkpoint_minutes": EVERY_STEP}
            content["train"] = {**steps, **WAYS[way].get("train", {}), **more.get("train", {})}
        return recipe.build(content)

    def recipe_file(self, way: str, **more: Any) -> Path:
        path = self.root / f"{way}.yaml"
        path.write_text(self.recipe(way, **more).to_yaml())
        return path


def hasten() -> None:
    """In a process: several shards from few images, and pages without the script that takes long to build."""
    import vl_convert

    from probe import features

    features.extract.__kwdefaults__["shard_rows"] = 8
    vl_convert.javascript_bundle = lambda: "let vega = 1;"


def contents(folder: Path, *, times: bool = False) -> dict[str, Any]:
    """Every file below a folder by its name: its bytes or, without the times in it, what it says."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and ".sqlite" not in p.name):
        reader = Path.read_bytes if times else READERS.get(path.suffix, Path.read_bytes)
        found[str(path.relative_to(folder))] = reader(path)
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


READERS: dict[str, Any] = {
    ".json": lambda path: _timeless(json.loads(path.read_text())),
    ".jsonl": lambda path: [_timeless(json.loads(line)) for line in path.read_text().splitlines()],
    ".html": lambda path: "",  # it retells the result, times included
    "": lambda path: "",  # and so do the checksums
}


def leftovers(*folders: Path) -> list[str]:
    """What should not be there once a command has ended well: unfinished files, locks, and the folder that
    a training works in, which is the run's name behind a dot."""
    hidden = [p for folder in folders if folder.exists() for p in folder.rglob(".*")]
    return sorted(str(p) for p in hidden if p.name.startswith((TEMPORARY, ".lock", ".timm")))
