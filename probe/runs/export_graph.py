"""A run as a graph from pixels to logits: ONNX, and torch.export. Any head, views and several backbones."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probe.errors import UserError
from probe.runs.model import RunModel

ONNX, TORCH = "model.onnx", "model.pt2"
ONE_FILE = 1_900_000_000  # bytes; protobuf holds no more than two gigabytes


def write_torch(model: RunModel, folder: Path, about: dict[str, Any]) -> None:
    """`model.pt2`, with what is said about it as an extra file inside."""
    with _quiet_tracing():
        torch.export.save(_graph(model, about), folder / TORCH, extra_files={"about.json": json.dumps(about)})


def torch_logits(folder: Path, pixels: Sequence[Tensor]) -> Tensor:
    """n x K, through the file."""
    with _quiet_tracing():
        return torch.export.load(folder / TORCH).module()(*pixels)


def write_onnx(model: RunModel, folder: Path, about: dict[str, Any]) -> None:
    """`model.onnx`: inputs `pixels`, `pixels_1`, ...; output `logits`; the rest is in its metadata."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--to onnx needs {package}: pip install 'mr2-probe[onnx]'")
    with _quiet_tracing():
        made = torch.onnx.export(
            _graph(model, about),
            dynamo=True,
            verbose=False,
            input_names=names(len(model.backbones)),
            output_names=["logits"],
        )
        assert made is not None
        size = sum(t.numel() * t.element_size() for b in model.backbones for t in b.state_dict().values())
        for key, value in about.items():
            made.model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
        made.save(folder / ONNX, external_data=size > ONE_FILE)


def onnx_logits(folder: Path, pixels: Sequence[Tensor]) -> Tensor:
    """n x K, through onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    given = {name: p.numpy() for name, p in zip(names(len(pixels)), pixels, strict=True)}
    return torch.from_numpy(session.run(["logits"], given)[0])


def names(inputs: int) -> list[str]:
    """Of the graph's inputs, one per backbone."""
    return ["pixels" if i == 0 else f"pixels_{i}" for i in range(inputs)]


def _graph(model: RunModel, about: dict[str, Any]) -> torch.export.ExportedProgram:
    """The run's module with any number of images in a batch."""
    from_bytes = about["inputs"][0]["takes"] == "uint8"
    dtype = torch.uint8 if from_bytes else torch.float32
    sizes = [b.preprocessing.size for b in model.backbones]
    some = tuple(torch.zeros(2, 3, size, size, dtype=dtype) for size in sizes)
    batch = torch.export.Dim.DYNAMIC
    shapes = (tuple({0: batch} for _ in some),)  # of *pixels, which is one argument
    return torch.export.export(model.module(from_bytes=from_bytes), some, dynamic_shapes=shapes)


@contextmanager
def _quiet_tracing() -> Iterator[None]:
    """The exporters report their own steps, by warnings and by log lines."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
