"""Names of classes, data and images that attack whoever looks at them: in pages, tables and terminals."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from probe.report.html import comparison as comparison_page
from probe.report.html import page
from probe.report.text import comparison as comparison_terminal
from probe.report.text import exports, run
from probe.runs import table as comparison
from probe.system.safe_parquet import LONGEST
from tests.torture.answers import command
from tests.torture.finished import without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

PARTS = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "{{7*7}}",
    "=cmd|'/C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r\n=1",
    "\x1b[2J\x1b[31m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2066\u2067",
    "\u200b\ufeff",
    "\0",
    "\ud800",
    "\u2028\u2029",
    "line\nend",
    "\\input{/etc/passwd}",
    "\\end{tabular}",
    "a_b & 50% $x$ #1 ~^",
    "| a | b |",
    "**bold** `code` [x](javascript:y)",
    "]]>",
    "<!--",
    "&lt;",
    "[red]markup[/red]",
    "[/]",
    "'; DROP TABLE x; --",
    "%s%n{0}",
    "é\u0301" * 40,
    "\N{PILE OF POO}",
    "x" * 10_000,
)
FORMULA = re.compile(r"[\s]*[=+\-@\t\r]")


def name(luck: Random) -> str:
    return "".join(luck.choices(PARTS, k=luck.choice([1, 1, 1, 2, 3])))


class Page(HTMLParser):
    """The elements of a page; whatever a name adds to them is an attack that worked."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.handlers: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.handlers += [key for key, _ in attrs if key.startswith("on")]
        links = [value or "" for key, value in attrs if key in ("href", "src")]
        self.handlers += [link for link in links if not link.startswith(("#", "data:"))]


def check_page(content: str) -> None:
    content.encode()
    found = Page(content)
    assert found.elements.count("script") == 3, "a name became a script"
    assert not {"img", "svg", "iframe", "object"} & set(found.elements), "a name became an element"
    assert not found.handlers, found.handlers
    assert all(c.isprintable() or c == "\n" for c in content), "an invisible character is in the page"


def check_text(content: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in content), "a control character was written"


def check_csv(content: str) -> None:
    check_text(content)
    rows = list(csv.reader(io.StringIO(content)))
    assert len({len(row) for row in rows}) == 1
    for cell in (cell for row in rows[1:] for cell in row if FORMULA.match(cell)):
        float(cell)  # a number may be negative; anything else would be a formula


def check_latex(content: str) -> None:
    check_text(content)
    bare = re.sub(r"\\[\\{}$&#%_]|\\text\w+\{\}", "", content)
    assert bare.count("{") == bare.count("}")
    assert bare.count("\\begin") == bare.count("\\end") == 1
    assert "\\input" not in bare


def check_markdown(content: str) -> None:
    check_text(content)
    lines = [line for line in content.splitlines() if line.startswith("|")]
    assert len({re.sub(r"\\.", "", line).count("|") for line in lines}) == 1
    assert "<" not in content.replace("&lt;", "")


def shown(show: Any, *given: Any) -> str:
    """What a terminal with colours would get, without the colours that are ours."""
    screen = io.StringIO()
    show(*given, Console(file=screen, width=80, force_terminal=True, highlight=False))
    return re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())


def row(luck: Random, method: str) -> dict[str, Any]:
    gain = (
        None if method == "erm" else {"mean": 0.1, "ci": [0.0, 0.2], "p": 0.01, "p_holm": 0.02, "clear": True}
    )
    statistic = {"accuracy": 0.5, "ci": [0.4, 0.6], "gain": gain, "relative": gain and 0.2}
    names = {key: name(luck) for key in ("data", "backbone", "run")}
    columns = {group: dict(statistic) for group in ("overall", "easy", "hard")}
    return {**names, "method": method, "seeds": 1, "reused": True, "statistics": columns}


def compared(luck: Random) -> dict[str, Any]:
    rows = [row(luck, "erm"), row(luck, name(luck))]
    failed = [{key: name(luck) for key in ("data", "backbone", "method", "error")}]
    return comparison.assemble(rows, name(luck), failed)


def prepare_runs(folder: Path) -> Case:
    page.library = without_charts
    path = folder / "here" / "predictions.parquet"

    def case(luck: Random) -> None:
        classes = sorted({name(luck) for _ in range(4)})
        n = len(classes)
        # an id longer than LONGEST is refused in one line
        ids = [
            f"{i} {name(luck)}".encode("utf-8", "replace")[:LONGEST].decode(errors="ignore")
            for i in range(3 * n)
        ]
        table = pa.table(
            {
                "id": ids * 2,
                "label": [i % n for i in range(3 * n)] * 2,
                "prediction": [luck.randrange(n) for _ in range(6 * n)],
                "method": ["erm"] * (3 * n) + ["mr2"] * (3 * n),
            }
        )
        pq.write_table(table.replace_schema_metadata({"class_names": json.dumps(classes)}), path)
        done = command(["report", str(path), "--json"])
        assert done.exit_code == 0, done.stderr
        check_text(done.stdout)
        (result,) = json.loads(done.stdout)
        check_page((path.parent / "predictions-report.html").read_text(encoding="utf-8"))
        assert [
            r["name"] for r in result["test"]["by_class"]
        ] == classes  # programs get the names as they are
        more = {
            "recipe": {"solver": {"name": "lbfgs", "l2": 1}, "method": {"name": name(luck)}},
            "backbone": {"name": name(luck)},
            "data": {"name": name(luck), "sizes": {"train": 1, "test": 1}},
            "remarks": [name(luck)],
            "timing": {"total": 1.0},
        }
        check_text(shown(run.show, {**result, **more}, name(luck)))

    return case


def prepare_comparisons(folder: Path) -> Case:
    page.library = without_charts

    def case(luck: Random) -> None:
        table = compared(luck)
        check_page(comparison_page.render(table))
        check_csv(exports.csv(table))
        check_latex(exports.latex(table))
        check_markdown(exports.markdown(table))
        check_text(shown(comparison_terminal.show, table, name(luck)))
        assert json.loads(json.dumps(table)) == table

    return case


PROMISE = "text in every output, and nothing else"
ROWS = (
    Torture("hostile names: runs", PROMISE, jailed(prepare_runs), quick=10, timeout=SECONDS),
    Torture("hostile names: comparisons", PROMISE, jailed(prepare_comparisons), quick=30, timeout=SECONDS),
)
