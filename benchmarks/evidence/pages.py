"""The tables of the evidence in the documentation, written between marks in the page.

    <!-- evidence: frozen -->
    | data | chosen for | ... |
    <!-- end -->

What stands between two marks comes from results/*.csv alone; sentences around them are written by people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.evidence.situations import SITUATIONS, situation
from probe.report.text import format
from probe.system.atomic import write_atomic

Lines = Iterable[Mapping[str, str]]  # of a table in results/

CHOSEN = {"overall": "all", "budget": "hard, in a budget", "auto": ""}
HARDEST = ("hard", "few")
PLAIN = "erm"
MARKED = r"<!-- evidence: (?P<name>[\w-]+) -->(?:(?!<!-- evidence: ).)*?<!-- end -->"  # none inside another


def written(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables between their marks; marks without a table keep what they hold."""

    def replaced(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- evidence: {name} -->\n{tables[name]}\n<!-- end -->" if name in tables else found[0]

    return re.sub(MARKED, replaced, page, flags=re.DOTALL)


def write(page: Path, tables: Mapping[str, str]) -> None:
    """The same for a file, if there is one."""
    if page.exists():
        write_atomic(page, written(page.read_text(encoding="utf-8"), tables))


def gains(lines: Lines) -> str:
    """A part: a row for each study and selection, a column for each method, gains on the hardest classes.

    Balanced data comes first.
    """
    order = list(SITUATIONS)
    lines = sorted(lines, key=lambda line: order.index(situation(line)))
    rows: dict[tuple[str, str], dict[str, dict[str, Mapping[str, str]]]] = {}
    for line in lines:
        row = rows.setdefault((line["data"].partition(", ")[2], line["selection"]), {})
        row.setdefault(line["method"], {})[line["classes"]] = line
    methods = list(dict.fromkeys(method for row in rows.values() for method in row if method != PLAIN))
    chosen = len({selection for _, selection in rows}) > 1
    headings = ["data", *(["chosen for"] if chosen else []), "seeds", f"`{PLAIN}`", "hard"]
    found = []
    for (data, selection), row in rows.items():
        first = row.get(PLAIN) or next(iter(row.values()))
        seeds = sorted({int(group["seeds"]) for method in row.values() for group in method.values()})
        cells = [data, *([CHOSEN.get(selection, selection)] if chosen else [])]
        cells += [" or ".join(map(str, seeds))]
        cells += [_accuracy(first, "overall"), _accuracy(first, *HARDEST)] if PLAIN in row else ["", ""]
        found.append([*cells, *(_gain(row.get(method, {})) for method in methods)])
    return _table([*headings, *(_code(method) for method in methods)], found, text=2 if chosen else 1)


def _code(method: str) -> str:
    """A method's name as code; a title in words as it is."""
    return method if " " in method else f"`{method}`"


def _accuracy(groups: Mapping[str, Mapping[str, str]], *names: str) -> str:
    line = next((groups[name] for name in names if name in groups), None)
    return "" if line is None else f"{float(line['accuracy']):.1f}"


def _gain(groups: Mapping[str, Mapping[str, str]]) -> str:
    """`**+4.1** (+1.3)`: on the hardest classes, and overall; bold where clear after the correction."""
    hard = next((groups[name] for name in HARDEST if name in groups), None)
    if hard is None or not hard["gain"]:
        return ""
    return f"{_signed(hard)} ({_signed(groups['overall'])})"


def _points(value: str | float) -> str:
    """A gain of the tables, with one digit and a sign."""
    return format.signed(float(value) / 100)


def _signed(line: Mapping[str, str]) -> str:
    shown = _points(line["gain"])
    return shown if line["verdict"] == format.NO_CHANGE else f"**{shown}**"


def summary(lines: Lines) -> str:
    """A row for each method: its mean gain on the hardest classes over the studies of each situation.

    The arms of a margin are left out: they are one method's parts.
    """
    found: dict[tuple[str, str], dict[str, list[Mapping[str, str]]]] = {}
    for line in lines:
        if line["part"] != "margins" and line["classes"] in HARDEST and line["gain"]:
            row = found.setdefault((line["method"], line["selection"]), {})
            row.setdefault(situation(line), []).append(line)
    rows = [
        [_code(method), CHOSEN.get(selection, selection), *(_mean(row.get(name, [])) for name in SITUATIONS)]
        for (method, selection), row in found.items()
    ]
    return _table(["method", "chosen for", *SITUATIONS], rows, text=2)


def _mean(lines: Sequence[Mapping[str, str]]) -> str:
    """`+12.4 (+4.1 to +31.9), 2 of 5 clear`: mean and range over studies, and how many are clear gains."""
    if not lines:
        return ""
    gains = [float(line["gain"]) for line in lines]
    better, worse = (sum(line["verdict"] == verdict for line in lines) for verdict in ("better", "worse"))
    ends = f" ({_points(min(gains))} to {_points(max(gains))})" if len(gains) > 1 else ""
    losses = f", {worse} clearly worse" if worse else ""
    return f"{_points(sum(gains) / len(gains))}{ends}, {better} of {len(gains)} clear{losses}"


def clear(lines: Lines) -> str:
    """Every gain and loss that is clear, with its corrected interval, and of how many."""
    known = [line for line in lines if line["gain"]]
    found = [line for line in known if line["verdict"] != format.NO_CHANGE]
    rows = [
        [
            *(line["data"], CHOSEN.get(line["selection"], line["selection"]), _code(line["method"])),
            *(line["classes"], line["seeds"], _points(line["gain"])),
            f"{_points(line['low'])} to {_points(line['high'])}",
            f"{float(line['p_holm']):.2g}",
        ]
        for line in found
    ]
    headings = ["data", "chosen for", "method", "classes", "seeds", "gain", "95 %, corrected", "p, corrected"]
    said = f"Clear after the correction are {len(found)} of {len(known)} gains:"
    return f"{said}\n\n{_table(headings, rows, text=4)}"


def forecasts(lines: Lines) -> str:
    """Rank correlations of what is known before training with the classes' errors: a row for each study."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        row = rows.setdefault((line["data"].partition(", ")[2], line["classes"]), {})
        row[line["sign"]] = line["rank_correlation_with_error"]
    signs = list(dict.fromkeys(sign for row in rows.values() for sign in row))
    found = [
        [data, classes, *(format.coefficient(float(row[sign])) if row.get(sign) else "" for sign in signs)]
        for (data, classes), row in rows.items()
    ]
    return _table(["data", "classes", *signs], found, text=1)


def left_out(lines: Lines) -> str:
    """What was not run as planned, and why."""
    return _table(
        ["part", "data", "rows", "seeds", "planned"],
        [[line[key] for key in ("part", "study", "rows", "seeds", "planned")] for line in lines],
        text=2,
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, text: int) -> str:
    """Markdown, whose first columns are text and whose others are numbers."""
    rule = [":---" if at < text else "---:" for at in range(len(headings))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))
