"""Draws what `probe run` prints about a run as a picture: docs/terminal.svg.

.venv/bin/python .ci/terminal.py RUN docs/terminal.svg
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from probe.report.text import run as terminal

WIDTH = 80


def picture(run: Path) -> str:
    """The terminal's output of a run folder as SVG; the command that made it is the title."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    console = Console(
        record=True, width=WIDTH, highlight=False, markup=False, emoji=False, file=io.StringIO()
    )
    terminal.show(result, f"runs/{run.name}", console)
    return console.export_svg(title=result["command"])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(Path(sys.argv[1])), encoding="utf-8")
