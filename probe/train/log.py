"""log.jsonl: a line a step and a line an epoch; written at checkpoints and at the end, never twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probe.files import named_failures


class Log:
    """Buffers lines in memory; `flush` appends them. With no file, lines are only kept."""

    def __init__(self, path: Path | None, *, tracker: Any = None) -> None:
        self.path, self.tracker = path, tracker
        self._waiting: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            self._waiting.append(line)
        if self.tracker is not None:
            self.tracker.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])

    def flush(self) -> None:
        if self.path is None or not self._waiting:
            return
        with named_failures(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in self._waiting))
        self._waiting.clear()

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`: it is about to happen again. A torn last line goes too."""
        if self.path is None or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] > step:
                    break
            except ValueError:
                break
            kept.append(line + "\n")
        self.path.write_text("".join(kept), encoding="utf-8")
