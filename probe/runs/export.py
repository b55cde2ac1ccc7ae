"""A run in the format of another library: one model with its head, its preprocessing and its class names.

What is written is loaded again through that library, and its logits are compared with the run's own, before
the folder appears. A format that cannot carry a run is refused in one line that names those that can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probe
from backbones import reading
from backbones.preprocess import Preprocessing
from backbones.quiet import quietly
from probe.errors import UserError, nearest
from probe.features.views import CENTER
from probe.heads.export import as_linear
from probe.runs import export_graph, export_library
from probe.runs.folder import RunFolder
from probe.runs.model import FLIP, RunModel, load
from probe.system.atomic import staged_folder

ABOUT = "mr2-probe.json"  # in every export; a folder without it is somebody else's
TOLERANCE = 1e-4  # of logits, or of the largest of them where that is above 1
TRIALS = 2  # random images that every export is checked on


@dataclass(frozen=True)
class Format:
    """One way out."""

    write: Callable[[RunModel, Path, dict[str, Any]], None]
    logits: Callable[[Path, Sequence[Tensor]], Tensor]  # through the library, of a written folder
    obstacle: Callable[[RunModel], str | None]  # why it cannot carry a run
    load: str  # how people load it


def _layer_obstacle(model: RunModel) -> str | None:
    """Why a run is not an encoder with one linear layer behind it."""
    if len(model.backbones) > 1:
        return f"{len(model.backbones)} backbones stand side by side"
    if model.views != (CENTER,):
        return "each image is seen in several views"
    if as_linear(model.head_) is None:
        kind = "unit-norm linear" if model.head_.kind == "linear" else model.head_.kind
        return f"a {kind} head is not one linear layer"
    return None


def _graph_obstacle(model: RunModel) -> str | None:
    """Why a run is not a graph from pixels to logits."""
    if model.head_.kind == "knn" or model.head_.settings.get("of") == "knn":
        return "k-NN looks its answer up among the training images"
    crops = [view.name for view in model.views if view not in (CENTER, FLIP)]
    return f"the place of {crops[0]} follows from each image's file" if crops else None


def _timm_obstacle(model: RunModel) -> str | None:
    return _layer_obstacle(model) or export_library.timm_obstacle(model.backbones[0])


def _transformers_obstacle(model: RunModel) -> str | None:
    return _layer_obstacle(model) or export_library.transformers_obstacle(model.backbones[0])


FORMATS = {
    "timm": Format(
        export_library.write_timm,
        export_library.timm_logits,
        _timm_obstacle,
        'timm.create_model("local-dir:{folder}", pretrained=True)',
    ),
    "transformers": Format(
        export_library.write_transformers,
        export_library.transformers_logits,
        _transformers_obstacle,
        'AutoModelForImageClassification.from_pretrained("{folder}")',
    ),
    "onnx": Format(
        export_graph.write_onnx,
        export_graph.onnx_logits,
        _graph_obstacle,
        'onnxruntime.InferenceSession("{folder}/model.onnx")',
    ),
    "torch": Format(
        export_graph.write_torch,
        export_graph.torch_logits,
        _graph_obstacle,
        'torch.export.load("{folder}/model.pt2").module()',
    ),
}


def export(run: Path, to: str, folder: Path, *, seed: int = 0, from_bytes: bool = False) -> dict[str, Any]:
    """Write the run's model to `folder` in the format `to`; returns what the folder's own file says.

    `seed` chooses among the heads of a run. With `from_bytes` the graph takes uint8 pixels and holds mean and
    standard deviation itself (onnx and torch).
    """
    if to not in FORMATS:
        raise UserError(f'there is no format "{to}"{nearest(to, FORMATS)}')
    if from_bytes and to not in ("onnx", "torch"):
        raise UserError(f"{to} has preprocessing of its own; --from-bytes is for onnx and torch")
    check_place(folder)
    model = load(run, seed=seed)
    if not isinstance(model, RunModel):
        raise UserError(f"{run} holds a head but no backbone; give a run folder, as `probe run` writes it")
    form = FORMATS[to]
    check_carries(model, to)
    about = describe(model, RunFolder(run), to, from_bytes)
    with quietly(), staged_folder(folder) as staged:
        form.write(model, staged, about)
        check_logits(model, staged, form, from_bytes)
        about["files"] = sorted([ABOUT, *(path.name for path in staged.iterdir())])
        (staged / ABOUT).write_text(json.dumps(about, indent=2))
    return {**about, "folder": str(folder), "load": form.load.format(folder=folder)}


def check_place(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the name of a new folder")
    found = {path.name for path in folder.iterdir()}
    try:
        ours = set(json.loads(reading.text(folder / ABOUT))["files"]) if found else set()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        ours = set()
    if found - ours:
        strange = min(found - ours)
        raise UserError(f"{folder} holds {strange}, which no export wrote; give the name of a new folder")


def check_carries(model: RunModel, to: str) -> None:
    """Refuse a format that cannot hold this run, and say which can."""
    why = FORMATS[to].obstacle(model)
    if why is None:
        return
    others = [f"--to {name}" for name, form in FORMATS.items() if form.obstacle(model) is None]
    way_out = f"use {' or '.join(others)}" if others else "no format can; `probe predict` classifies images"
    raise UserError(f"{to} cannot carry this run: {why}; {way_out}")


def check_logits(model: RunModel, folder: Path, form: Format, from_bytes: bool) -> None:
    """Random pixels through the library must give what they give through the run itself."""
    draw = torch.Generator().manual_seed(0)
    sizes = [b.preprocessing.size for b in model.backbones]
    pixels = [torch.randint(256, (TRIALS, 3, s, s), generator=draw, dtype=torch.uint8) for s in sizes]
    normalised = [b.preprocessing.normalise(p) for b, p in zip(model.backbones, pixels, strict=True)]
    with torch.inference_mode():
        views = [[p.flip(-1) if v == FLIP else p for p in normalised] for v in model.views]
        features = [torch.cat([b(p) for b, p in zip(model.backbones, v, strict=True)], dim=1) for v in views]
        expected = model.head_.scores_over(features).float()
        found = form.logits(folder, pixels if from_bytes else normalised)
    gap, size = float((found - expected).abs().max()), max(1.0, float(expected.abs().max()))
    if not gap <= TOLERANCE * size:
        raise UserError(
            f"the exported model differs from the run: logits by {gap:.2g}, which are up to {size:.3g}; "
            "nothing was written. Try another format, and please report this"
        )


def describe(model: RunModel, run: RunFolder, to: str, from_bytes: bool) -> dict[str, Any]:
    """What a reader of the folder should know: classes, pixels, and where it came from."""
    return {
        "format": to,
        "run": run.name,
        "seed": model.seed,
        "seeds": run.seeds,
        "class_names": list(model.class_names_),
        "inputs": [
            {
                "backbone": b.name,
                "tap": b.tap,
                "takes": "uint8" if from_bytes else "float32, normalised",
                **preprocessing(b.preprocessing),
            }
            for b in model.backbones
        ],
        "views": [view.name for view in model.views],
        "head": model.head_.kind,
        "made_by": f"mr2-probe {probe.__version__}",
    }


def preprocessing(numbers: Preprocessing) -> dict[str, Any]:
    """The numbers of a transform, as JSON holds them."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(numbers).items()}
