"""Who may import whom: downward only, read from every import statement, also those inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# From the top of the house to the bottom; a room may import every room of a lower row.
ROWS = (
    ("cli",),
    ("runs",),
    ("report", "train"),
    ("methods", "probing"),
    ("features", "losses", "heads", "solve", "evaluation", "data", "recipe"),
    ("core", "system"),
    ("backbones",),
)
# Rooms of one row that may be imported all the same, because data flows that way.
BESIDE = {("features", "data"), ("heads", "solve"), ("evaluation", "solve")}
# Rooms that may import less than their row would let them.
ONLY = {
    "losses": {"core"},
    "solve": {"core"},
    "report": {"system", "backbones"},  # plain results; of backbones only what reads files
    "backbones": set(),
}
FREE = {"probe", "probe.errors", "probe.plugins"}  # the root: free to all

HEIGHT = {room: len(ROWS) - row for row, rooms in enumerate(ROWS) for room in rooms}


def room_of(module: str) -> str | None:
    """The room of a dotted name; None for what is not ours, and for what is free to all."""
    first, _, rest = module.partition(".")
    if first == "backbones":
        return "backbones"
    if first != "probe" or module in FREE:
        return None
    if rest == "__main__":  # `python -m probe` is the command
        return "cli"
    return rest.partition(".")[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, with the line; `from probe import data` imports `probe.data`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = (
                [f"probe.{alias.name}" for alias in node.names] if node.module == "probe" else [node.module]
            )
            yield from ((node.lineno, name) for name in names)


def rule(room: str) -> str:
    if room in ONLY:
        return f"{room} may import {', '.join(sorted(ONLY[room])) or 'no room'} only"
    beside = [other for one, other in sorted(BESIDE) if one == room]
    return f"{room} may import rooms below it" + (f" and {', '.join(beside)}" if beside else "")


def allowed(room: str, other: str) -> bool:
    if other not in HEIGHT:
        return False  # a module outside every room
    if room == other:
        return True
    if room in ONLY:
        return other in ONLY[room]
    return HEIGHT[other] < HEIGHT[room] or (room, other) in BESIDE


def broken(path: Path, module: str) -> list[str]:
    """A line for each import of this file that its room may not have."""
    room = room_of(module)
    if room is None:
        return []
    return [
        f"{path.as_posix()}:{line} imports {other}: {rule(room)}"
        for line, other in imports(ROOT / path)
        if (theirs := room_of(other)) is not None and not allowed(room, theirs)
    ]


def sources() -> Iterator[tuple[Path, str]]:
    for top in ("probe", "backbones"):
        for path in sorted((ROOT / top).rglob("*.py")):
            relative = path.relative_to(ROOT)
            yield relative, ".".join(relative.with_suffix("").parts).removesuffix(".__init__")


def test_rooms_import_downward_only():
    found = [line for path, module in sources() for line in broken(path, module)]
    assert not found, "\n".join(found)


def test_every_module_is_in_a_room():
    outside = [str(path) for path, module in sources() if (room := room_of(module)) and room not in HEIGHT]
    assert not outside


def test_a_step_upwards_is_named_with_file_import_and_rule(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from probe.runs.run import run\n")
    (line,) = broken(file, "probe.losses.bad")
    assert line.endswith("bad.py:2 imports probe.runs.run: losses may import core only")


HEAVY = ("backbones.catalogue", "probe.recipe", "probe.data", "probe.train", "probe.runs", "probe.features")


@pytest.mark.parametrize("statement", ["import probe.losses", "from probe import ProbeClassifier"])
def test_losses_and_the_estimator_load_no_backbone_recipe_data_or_training(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = {"backbones", "backbones.errors", "backbones.lazy", "backbones.reading"}
    loaded = {name for name in done.stdout.split() if name.startswith(HEAVY) or name.startswith("backbones")}
    assert not loaded - light


def test_type_checkers_do_not_see_what_makes_a_package_lazy():
    """To them a `__getattr__` in the open makes every name of the package an `Any`, a misspelt one too."""
    for path, _ in sources():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        assert "__getattr__" not in names, f"{path}: put it below `if not TYPE_CHECKING:`"
