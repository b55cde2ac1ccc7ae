"""A comparison in the papers' layout, for spreadsheets, Markdown and LaTeX.

Rows are backbone and method, columns Overall and the groups; the gain over the reference is in brackets, with
a star if it is clear after Holm's correction over the whole table.
"""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.text import format
from probe.system.safe_text import printable

Comparison = Mapping[str, Any]
LEGEND = (
    "In brackets: gain over {reference} in points. *: clear after Holm's correction; else no clear change."
)
# A spreadsheet reads a cell that begins with one of these as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    format.MINUS: "$-$",
    format.UNKNOWN: "--",
}
CSV_COLUMNS = (
    *("data", "backbone", "method", "seeds", "statistic", "accuracy", "ci_low", "ci_high"),
    *("gain", "gain_low", "gain_high", "p", "p_holm", "verdict", "relative", "run"),
    *("table", "published", "difference", "difference_low", "difference_high"),  # of a paper's table
)
MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]|#~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def legend(comparison: Comparison) -> str:
    """What the brackets and the stars mean."""
    return LEGEND.format(reference=format.against(comparison["reference"], comparison.get("how")))


def columns(comparison: Comparison) -> list[str]:
    """The statistics of the table: overall and the groups."""
    return comparison.get("columns") or ["overall", *comparison["groups"]]


def by_count(comparison: Comparison) -> Iterator[tuple[str, dict[str, Any]]]:
    """The comparison once more for each grouping by training images, whose columns are its groups."""
    for scheme, names in (comparison.get("count_groups") or {}).items():
        rows = [
            {**row, "statistics": row["count_statistics"][scheme]}
            for row in comparison["rows"]
            if scheme in (row.get("count_statistics") or {})
        ]
        yield scheme, {**comparison, "columns": names, "rows": rows, "tables": [], "count_groups": {}}


def cell(statistic: Mapping[str, Any] | None) -> str:
    """`59.6 (+3.2*)`."""
    if statistic is None or statistic["accuracy"] is None:
        return format.UNKNOWN
    gain = statistic["gain"]
    shown = format.percent(statistic["accuracy"])
    return shown if gain is None else f"{shown} ({format.gained(gain)}{'*' if gain['clear'] else ''})"


def by_data(comparison: Comparison) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Each data set and its rows."""
    for name in dict.fromkeys(row["data"] for row in comparison["rows"]):
        yield name, [row for row in comparison["rows"] if row["data"] == name]


def csv(comparison: Comparison) -> str:
    """One line per run and statistic, then one per cell of each paper's table; numbers as fractions.

    Names can never become formulas.
    """
    buffer = io.StringIO()
    writer = csv_module.DictWriter(buffer, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in (*_run_lines(comparison), *_published_lines(comparison)):
        writer.writerow({key: harmless(value) for key, value in line.items()})
    return buffer.getvalue()


def _run_lines(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for row in comparison["rows"]:
        by_count = {
            f"{scheme}: {n}": s
            for scheme, c in (row.get("count_statistics") or {}).items()
            for n, s in c.items()
        }
        for name, s in {**row["statistics"], **by_count}.items():
            yield {**_of_run(row), "statistic": name, **_measured(s), "relative": s["relative"]}


def _published_lines(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A line per row and column of each paper's table, with or without a run of ours."""
    runs = {row["run"]: _of_run(row) for row in comparison["rows"]}
    for table in comparison.get("tables") or ():
        name = "/".join(filter(None, (table["name"], table["variant"])))
        for row in table["rows"]:
            for column, s in row["statistics"].items():
                difference = s["difference"] or {}
                low, high = difference.get("ci") or (None, None)
                yield {
                    **runs.get(row["run"], {}),
                    **{"method": row["title"], "statistic": column, **_measured(s), "table": name},
                    **{"published": s["published"], "difference": difference.get("mean")},
                    **{"difference_low": low, "difference_high": high},
                }


def _of_run(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("data", "backbone", "method", "seeds", "run")}


def _measured(s: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy and gain of a statistic, with their intervals."""
    gain, (low, high) = s["gain"] or {}, s["ci"] or (None, None)
    gain_low, gain_high = gain.get("ci", (None, None))
    return {
        **{"accuracy": s["accuracy"], "ci_low": low, "ci_high": high},
        **{"gain": gain.get("mean"), "gain_low": gain_low, "gain_high": gain_high},
        **{"p": gain.get("p"), "p_holm": gain.get("p_holm")},
        "verdict": format.verdict(s["gain"]) if gain else None,
    }


def harmless(value: Any) -> Any:
    """Numbers as they are; text made printable, with a quote before what a spreadsheet would compute."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.lstrip(" ").startswith(FORMULA) else printable(value)


def escaped(value: str, rules: Mapping[str, str]) -> str:
    """Printable, on one line, and with every character that the format would interpret escaped."""
    return "".join(rules.get(c, c) for c in printable(value))


def markdown(comparison: Comparison) -> str:
    """One table per data set, with the intervals of the gains below each."""
    parts = _markdown_tables(comparison)
    for scheme, other in by_count(comparison):
        parts += [f"By training images, {scheme}:", *_markdown_tables(other)]
    parts.append(escaped(legend(comparison), MARKDOWN))
    for failed in comparison["failed"]:
        where = " / ".join(escaped(failed[k], MARKDOWN) for k in ("data", "backbone", "method"))
        parts.append(f"- failed: {where}: {escaped(failed['error'], MARKDOWN)}")
    return "\n\n".join(parts) + "\n"


def _markdown_tables(comparison: Comparison) -> list[str]:
    parts = []
    names = columns(comparison)
    for data, rows in by_data(comparison):
        heading = ["backbone", "method", *(n.capitalize() for n in names)]
        lines = [[*_labels(row, MARKDOWN), *(cell(row["statistics"].get(n)) for n in names)] for row in rows]
        # the stars of clear gains must not be read as emphasis
        lines = [[*line[:2], *(v.replace("*", "\\*") for v in line[2:])] for line in lines]
        parts.append(
            f"### {escaped(format.data(data), MARKDOWN)}\n\n{grid(heading, lines, right=len(names))}"
        )
        gains = [
            [*_labels(row, MARKDOWN), *(_gain_interval(row["statistics"].get(n)) for n in names)]
            for row in rows
            if any(s["gain"] for s in row["statistics"].values())
        ]
        if gains:
            intervals = grid(heading, gains, right=len(names))
            parts.append(
                f"95 % intervals of the gains, corrected for the table's size (Holm):\n\n{intervals}"
            )
    return parts


def _labels(row: Mapping[str, Any], rules: Mapping[str, str]) -> list[str]:
    return [escaped(row["backbone"], rules), escaped(row["method"], rules)]


def _gain_interval(statistic: Mapping[str, Any] | None) -> str:
    gain = statistic and statistic["gain"]
    return format.gain_interval(gain["ci"]) if gain else format.UNKNOWN


def grid(heading: Sequence[str], lines: Sequence[Sequence[str]], right: int) -> str:
    """A table in Markdown whose last columns, so many, are numbers."""
    rule = [":---"] * (len(heading) - right) + ["---:"] * right
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, rule, *lines))


def latex(comparison: Comparison) -> str:
    """One tabular for all data sets, ready for \\input, with intervals; needs the package booktabs."""
    names = columns(comparison)
    width = len(names) + 2
    lines = [
        r"% written by mr2-probe; \usepackage{booktabs}",
        rf"\begin{{tabular}}{{ll{'r' * len(names)}}}",
        r"\toprule",
        " & ".join(["Backbone", "Method", *(escaped(n.capitalize(), LATEX) for n in names)]) + r" \\",
    ]
    for data, rows in by_data(comparison):
        title = rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escaped(format.data(data), LATEX)}}}}} \\"
        lines += [r"\midrule", title]
        for row in rows:
            found = [row["statistics"].get(n) for n in names]
            values = [escaped(cell(statistic), LATEX) for statistic in found]
            lines.append(" & ".join([*_labels(row, LATEX), *values]) + r" \\")
            lines.append(" & ".join(["", "", *map(_latex_interval, found)]) + r" \\")
    note = escaped(f"{legend(comparison)} Below: 95 % intervals of the accuracies.", LATEX)
    lines += [
        r"\bottomrule",
        rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {note}}} \\",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_interval(statistic: Mapping[str, Any] | None) -> str:
    if statistic is None or statistic["ci"] is None:
        return ""
    low, high = (format.percent(end) for end in statistic["ci"])
    return rf"{{\scriptsize [{low}, {high}]}}"
