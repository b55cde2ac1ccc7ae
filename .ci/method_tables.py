"""The tables of docs/methods/, from the catalogue: what each method is, and its parameters.

    python .ci/method_tables.py            write them between their markers
    python .ci/method_tables.py --check    say which pages are out of date, and which methods have none

A page says which methods it is about in its markers, `<!-- methods: erm la -->` ... `<!-- end -->` and
`<!-- parameters: erm la -->` ... `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the catalogue of this copy, installed or not

from probe import methods  # noqa: E402

PAGES = ROOT / "docs" / "methods"
BLOCK = re.compile(r"<!-- (methods|parameters): ([^>]+?) -->\n.*?<!-- end -->", re.DOTALL)
FROZEN = {"exact": "exact solve", "sgd": "`--solver sgd`", "no effect": "no effect, refused"}


def about(rows: list[Any]) -> list[str]:
    """One line for each method: what it is and what can be done with it."""
    lines = ["| name | method | takes | on frozen features | on balanced data |", "|---|---|---|---|---|"]
    for row in rows:
        takes = ", ".join([row.takes, *row.needs])
        frozen = f"{FROZEN[row.frozen]}: {row.why}"
        lines.append(f"| `{row.name}` | {row.title} ({row.paper}) | {takes} | {frozen} | {row.balanced} |")
    return lines


def parameters(rows: list[Any]) -> list[str]:
    """One line for each parameter of each method."""
    lines = ["| name | parameter | default | allowed | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        for p in row.parameters:
            default = _value(p.default) + ("" if p.whole_set is None else f", in runs {_value(p.whole_set)}")
            default += "" if p.scratch is None else f", from scratch {_value(p.scratch)}"
            lines.append(f"| `{row.name}` | `{p.name}` | {default} | {_allowed(p)} | {p.says} |")
        if not row.parameters:
            lines.append(f"| `{row.name}` | none | | | |")
    return lines


def _value(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if default is not None else "none"


def _allowed(p: Any) -> str:
    if p.choices:
        return ", ".join(f"`{choice}`" for choice in p.choices)
    if isinstance(p.default, bool):
        return "`true`, `false`"
    low, high = (None if end is None else f"{end:.9g}" for end in (p.low, p.high))
    if low and high:
        return f"{low} to {high}"
    return f"at least {low}" if low else f"at most {high}" if high else ""


TABLES = {"methods": about, "parameters": parameters}


def written(text: str) -> str:
    """A page with its tables as they should be."""

    def table(block: re.Match[str]) -> str:
        rows = [methods.info(name) for name in block[2].split()]
        return "\n".join([f"<!-- {block[1]}: {block[2]} -->", *TABLES[block[1]](rows), "<!-- end -->"])

    return BLOCK.sub(table, text)


def problems(pages: dict[Path, str]) -> list[str]:
    """Pages with old tables, and methods that do not stand in exactly one page."""
    found = [f"{path.name} is out of date" for path, text in pages.items() if written(text) != text]
    blocks = [block for text in pages.values() for block in BLOCK.finditer(text)]
    for kind in TABLES:
        listed = [name for block in blocks if block[1] == kind for name in block[2].split()]
        found += [
            f"{name} stands in {listed.count(name)} tables of {kind}, not one"
            for name in methods.names()
            if listed.count(name) != 1
        ]
    return found


def main() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))}
    if "--check" not in sys.argv:
        pages = {path: written(text) for path, text in pages.items()}
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
    if found := problems(pages):
        sys.exit("\n".join([*found, "run: python .ci/method_tables.py"]))


if __name__ == "__main__":
    main()
