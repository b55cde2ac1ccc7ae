"""Classify images with the head that a run saved: a batch is decoded while another one is scored."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import backbones
from backbones.backbone import Backbone
from probe.data.decode import BadImage, rgb
from probe.data.unlabelled import StoredImage, Unlabelled
from probe.errors import UserError
from probe.evaluation.track_record import TrackRecord
from probe.features.views import CENTER, View
from probe.heads.fitted import FittedHead
from probe.runs.folder import RunFolder
from probe.system import devices
from probe.system.atomic import staged_file
from probe.system.progress import bar
from probe.system.world import usable_cores

BATCH = 64
DECODERS = 4  # threads, where there are as many cores
ENDS = (".csv", ".parquet")
WAYS_OUT = "fix it, or give --skip-bad-images"


@dataclass(frozen=True)
class Predicted:
    """An image and its most probable classes, best first."""

    image: str
    classes: list[tuple[str, float]]
    numbers: list[int]  # of these classes
    records: list[str]  # how often such a guess is right, and what it is otherwise; empty where unknown

    def as_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        rows = [{"name": n, "probability": p} for n, p in self.classes]
        for row, record in zip(rows, self.records, strict=False):
            row["record"] = record
        return {"image": self.image, "classes": rows}

    def lines(self) -> list[str]:
        """As a terminal shows it."""
        wide = max(len(name) for name, _ in self.classes)
        said = self.records or [""] * len(self.classes)
        rows = zip(self.classes, said, strict=True)
        found = (f"  {100 * p:5.1f} %  {name:{wide}}  {record}".rstrip() for (name, p), record in rows)
        return [self.image, *found]


class PredictionStream:
    """Predictions one after the other; afterwards `bad` says which images were left out, and why."""

    def __init__(self, network: RunNetwork, images: Unlabelled, top: int, skip_bad_images: bool) -> None:
        self.class_names = network.class_names
        self.bad: list[str] = []
        self.count = 0
        self._network, self._images, self._skip = network, images, skip_bad_images
        self._top = min(top, len(self.class_names))

    def __iter__(self) -> Iterator[Predicted]:
        workers = max(1, min(DECODERS, usable_cores()))
        images = iter(self._images)
        with ThreadPoolExecutor(workers) as pool, bar("predicting", len(self._images), "images") as advance:

            def start() -> list[Any]:
                return [(image, pool.submit(self._look, image)) for image in islice(images, BATCH)]

            ahead = start()
            while ahead:
                batch, ahead = ahead, start()
                looked = [(image.name, job.result()) for image, job in batch]
                self.bad += [found for _, found in looked if isinstance(found, str)]
                yield from self._scored(
                    [(name, found) for name, found in looked if not isinstance(found, str)]
                )
                advance(len(batch))

    def _look(self, image: StoredImage) -> list[Tensor] | str:
        """The pixels of an image, small by now; what is wrong with a bad one that may be left out."""
        try:
            return self._network.pixels(image)
        except (BadImage, OSError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                reason = f"cannot read {image.name}: {error.strerror or error}; {WAYS_OUT}"
            if not self._skip:
                raise UserError(reason) from error
            return reason.removesuffix(f"; {WAYS_OUT}")

    def _scored(self, seen: Sequence[tuple[str, list[Tensor]]]) -> Iterator[Predicted]:
        if not seen:
            return
        best = self._network.probability([pixels for _, pixels in seen]).topk(self._top, dim=1)
        for (name, _), values, classes in zip(seen, best.values.tolist(), best.indices.tolist(), strict=True):
            self.count += 1
            rows = [(self.class_names[k], p) for k, p in zip(classes, values, strict=True)]
            records = self._network.records
            said = [str(records[k]) for k in classes] if records else []
            yield Predicted(name, rows, classes, said)


@dataclass(frozen=True)
class RunNetwork:
    """The encoders and the head of a run."""

    encoders: list[Backbone]
    views: list[View]
    head: FittedHead
    class_names: list[str]
    records: Sequence[TrackRecord] | None  # of the classes, on the run's own test images

    @classmethod
    def of(cls, run: Path, device: str = "auto") -> RunNetwork:
        """The backbones are loaded as the run described them, with the weights the head was trained on."""
        folder = RunFolder(run)
        head, about = folder.head()
        if "backbone" not in about:
            raise UserError(
                f"{run} holds a head but no backbone; give a run folder, as `probe run` writes it"
            )
        tuned = folder if about.get("tuned") else None
        where = str(devices.chosen(device, devices.FOR_ENCODING))
        encoders = [load_backbone_of(part, tuned, where) for part in (about, *about.get("also", []))]
        views = [View(name) for name in about.get("views", [CENTER.name])]
        names = about["class_names"]
        return cls(encoders, views, head, names, folder.track_records(names))

    def pixels(self, image: StoredImage) -> list[Tensor]:
        """uint8, of every view by every encoder; the views follow from the SHA-256 of the stored bytes."""
        stored = image.read()
        digest, opened = hashlib.sha256(stored).digest(), rgb(stored, image.name, ways_out=WAYS_OUT)
        return [view.pixels(b.preprocessing, opened, digest) for view in self.views for b in self.encoders]

    @torch.inference_mode()
    def probability(self, pixels: Sequence[Sequence[Tensor]]) -> Tensor:
        """n x K, of the pixels of n images."""
        stacked = iter([torch.stack(same) for same in zip(*pixels, strict=True)])
        features = []
        for _ in self.views:
            parts = [b(b.preprocessing.normalise(next(stacked).to(b.device))).cpu() for b in self.encoders]
            features.append(torch.cat(parts, 1))
        return self.head.scores_over(features).softmax(dim=1)


def predictions(
    run: Path,
    images: Sequence[str | Path],
    *,
    top: int = 5,
    skip_bad_images: bool = False,
    device: str = "auto",
) -> PredictionStream:
    """For each image the `top` classes with their probabilities, best first, one image after the other.

    `images` are files, folders, patterns and tables (`probe.data.unlabelled`); `device` is that of a recipe.
    """
    found = Unlabelled([str(image) for image in images])  # a wrong path is told before the network is loaded
    return PredictionStream(RunNetwork.of(run, device), found, top, skip_bad_images)


def predict(run: Path, images: Sequence[str | Path], *, top: int = 5) -> list[dict[str, Any]]:
    """The same as a list of plain values."""
    return [row.as_dict() for row in predictions(run, images, top=top)]


def check_target(path: Path) -> None:
    """Refuse a file of another kind before anything is computed."""
    if path.suffix.lower() not in ENDS:
        raise UserError(f"{path} is neither .csv nor .parquet; give --to a file that ends so")


def write(rows: PredictionStream, path: Path) -> int:
    """Write the predictions as they come; the file appears when it is complete. Returns their number."""
    check_target(path)
    with staged_file(path) as staged:
        (_write_csv if path.suffix.lower() == ".csv" else _write_parquet)(rows, staged)
    return rows.count


def _write_csv(rows: PredictionStream, path: Path) -> None:
    """image, prediction, probability, then prediction_2, probability_2 and so on."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        ends = ["", *(f"_{i}" for i in range(2, rows._top + 1))]
        out.writerow(["image", *(f"{what}{end}" for end in ends for what in ("prediction", "probability"))])
        for row in rows:
            out.writerow([row.image, *(v for name, p in row.classes for v in (name, f"{p:.6g}"))])


def _write_parquet(rows: PredictionStream, path: Path) -> None:
    """image, prediction, probability, top, top_probabilities; `datasets` shows the names of the classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from probe.system import class_columns

    def table(part: Sequence[Predicted]) -> pa.Table:
        columns = {
            "image": pa.array([row.image for row in part], pa.string()),
            "prediction": pa.array([row.numbers[0] for row in part], pa.int64()),
            "probability": pa.array([row.classes[0][1] for row in part], pa.float32()),
            "top": pa.array([row.numbers for row in part], pa.list_(pa.int64())),
            "top_probabilities": pa.array(
                [[p for _, p in row.classes] for row in part], pa.list_(pa.float32())
            ),
        }
        return class_columns.named(pa.table(columns), rows.class_names, ("prediction", "top"))

    stream = iter(rows)
    with pq.ParquetWriter(path, table([]).schema, compression="zstd") as file:
        while part := list(islice(stream, 64 * BATCH)):
            file.write_table(table(part))


def load_backbone_of(about: Mapping[str, Any], tuned: RunFolder | None, device: str = "cpu") -> Backbone:
    """The backbone that a run described with its head, with the weights that the head was trained on."""
    backbone = backbones.load(**about["backbone"], device=device)
    if tuned is not None:
        tuned.restore_weights(backbone)
    if backbone.fingerprint != about["fingerprint"]:
        raise UserError(
            f"the weights of {backbone.name} are not those this head was trained on; "
            "restore them, or run the probe again"
        )
    return backbone
