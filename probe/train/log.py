"""log.jsonl: a line a step and a line an epoch; written at checkpoints and at the end, never twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from backbones import reading
from probe.system.atomic import make_folder, named_failures, write_atomic

FILE = "log.jsonl"  # of a training's folder, and of a run's


class Log:
    """Buffers lines in memory; `flush` appends them. With no file, lines are only kept."""

    def __init__(self, path: Path | None, *, tracker: Any = None) -> None:
        self.path, self.tracker = path, tracker
        self.count = 0  # lines in the file
        self._waiting: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            self._waiting.append(line)
        if self.tracker is not None:
            prefix = "" if "samples" in line else "epoch/"  # an epoch's mean is no step's loss
            numbers = {name: v for name, v in line.items() if isinstance(v, int | float) and name != "step"}
            self.tracker.log({f"{prefix}{name}": v for name, v in numbers.items()}, step=line["step"])

    def flush(self) -> None:
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
