"""Runs the cells of a notebook in plain Python and stores what they print, without Jupyter.

    .venv/bin/python .ci/notebook.py examples/tutorial.ipynb            # run it and store its outputs
    .venv/bin/python .ci/notebook.py examples/tutorial.ipynb --check    # run it; fail where they are stale

Stored are the text of each cell, the value of its last line, and pictures as PNG. Text must be the same on
every machine, so cells print rounded numbers and no times; pictures are not compared.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def executed(notebook: dict[str, Any]) -> list[list[Output]]:
    """The outputs of every code cell, in order, run in one namespace and an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["PROBE_CACHE"] = str(Path(folder, "cache"))
        return [_outputs("".join(cell["source"]), names, n) for n, cell in enumerate(_code(notebook), 1)]


def stale(notebook: dict[str, Any]) -> list[str]:
    """What a fresh run prints otherwise than the notebook says, cell by cell; empty where all is current."""
    found = []
    for cell, fresh in zip(_code(notebook), executed(notebook), strict=True):
        before, now = text(cell["outputs"]), text(fresh)
        if before != now:
            found.append(f"cell {cell['execution_count']} says\n{before}\nand now prints\n{now}")
    return found


def text(outputs: list[Output]) -> str:
    """What a cell printed, and its value."""
    return "".join(
        "".join(out["text"] if out["output_type"] == "stream" else out["data"].get("text/plain", ""))
        for out in outputs
    )


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _outputs(source: str, names: dict[str, Any], number: int) -> list[Output]:
    """Run one cell; the value of its last line is shown where that is an expression, as Jupyter does."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[Output] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data = _shown(value)
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """A picture as PNG, anything else as its representation."""
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode()}
    return {"text/plain": [repr(value)]}


def main(path: Path, check: bool) -> int:
    """Run the notebook; store its outputs, or compare them."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if check:
        found = stale(notebook)
        print("\n".join(found) or f"{path}: current", file=sys.stderr if found else sys.stdout)
        return 1 if found else 0
    for number, (cell, fresh) in enumerate(zip(_code(notebook), executed(notebook), strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, fresh
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--check" in sys.argv[2:]))
