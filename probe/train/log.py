"""log.jsonl: one line per step and one per epoch; written at checkpoints and at the end, never twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from probe.system.atomic import make_folder, named_failures, write_atomic

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from probe.recipe.train_settings import TrainConfig

FILE = "log.jsonl"  # of a training's folder, and of a run's


class Log:
    """Buffers lines in memory; `flush` appends them to the file. Without one (`path` None) they are dropped.

    Trackers (TensorBoard, ...) are told the numbers of each line too.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.trackers: list[GeneralTracker] = []
        self._tracker: Accelerator | None = None
        self.count = 0  # lines in the file
        self._waiting: list[dict[str, Any]] = []

    def track(self, accelerator: Accelerator, settings: TrainConfig) -> None:
        """Start the trackers that the settings ask for; process 0 reports to them."""
        if settings.trackers:
            config = {
                name: value
                for name, value in settings.model_dump(exclude_none=True).items()
                if isinstance(value, bool | int | float | str)
            }
            accelerator.init_trackers("probe", config=config)
            self.trackers = accelerator.trackers
            self._tracker = accelerator if accelerator.process_index == 0 else None

    def close(self) -> None:
        """Write what is left, and finish the trackers."""
        self.flush()
        for tracker in self.trackers:  # Accelerate's `end_training` would end the process group as well
            tracker.finish()

    def write(self, line: dict[str, Any]) -> None:
        """Add a line: "step", and whatever else is known."""
        if self.path is not None:
            self._waiting.append(line)
        if self._tracker is not None:
            prefix = "" if "samples" in line else "epoch/"  # an epoch's mean is not a step's loss
            numbers = {name: v for name, v in line.items() if isinstance(v, int | float) and name != "step"}
            self._tracker.log({f"{prefix}{name}": v for name, v in numbers.items()}, step=line["step"])

    def flush(self) -> None:
        """Append the waiting lines to the file, durably."""
        if self.path is None or not self._waiting:
            return
        lines = "".join(json.dumps(line) + "\n" for line in self._waiting)
        with named_failures(self.path, len(lines)):
            make_folder(self.path.parent)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        self.count += len(self._waiting)
        self._waiting.clear()

    def rewind(self, count: int) -> None:
        """Drop what was logged after the first `count` lines: it is about to happen again."""
        self.count = 0
        if self.path is not None and self.path.exists():
            kept = reading.text(self.path, reading.LOG).splitlines(keepends=True)[:count]
            write_atomic(self.path, "".join(kept))
            self.count = len(kept)
