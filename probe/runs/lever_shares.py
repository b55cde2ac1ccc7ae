"""What the levers of `probe improve` gave: by kind, in one honest sentence, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.text import format

Row = Mapping[str, Any]  # of a lever, as improve.json has it
# What the kinds of `probe.runs.levers` are called.
KINDS = {
    "selection": "choice of l2",
    "margins": "margins",
    "weights": "re-weighting",
    "views": "views",
    "size": "input size",
    "taps": "further taps",
    "backbones": "further backbones",
    "training": "training",
}


def shares(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """For each kind that was tried: its part of the gain on held-out training images, and its best lever.

    Gains are those of levers when they were added, so the parts of what was kept add up to the whole.
    """
    found = {}
    for kind, name in KINDS.items():
        tried = [row for row in rows if row["kind"] == kind and row["gain"] is not None]
        if not tried:
            continue
        kept = [row for row in tried if row["kept"]]
        best = max(tried, key=lambda row: row["gain"]["hard"]["mean"])
        found[kind] = {
            "name": name,
            "tried": len(tried),
            "kept": [row["name"] for row in kept],
            "hard": sum(row["gain"]["hard"]["mean"] for row in kept),
            "overall": sum(row["gain"]["overall"]["mean"] for row in kept),
            "best": {"name": best["name"], "hard": best["gain"]["hard"]["mean"]},
        }
    return found


def sentence(report: Mapping[str, Any]) -> str:
    """What was found, in one honest sentence."""
    given = report["shares"]
    unused = ", ".join(
        f"{share['name']} ({format.signed(share['best']['hard'])})"
        for share in given.values()
        if not share["kept"]
    )
    if report["gain"] is None:
        tried = sum(share["tried"] for share in given.values())
        if not tried and (late := _no_time(report)):
            return f"No lever was tried: there was no time for any of {late}; give it more --minutes."
        best = f"; the best of each kind on hard classes: {unused}" if unused else ""
        late = _no_time(report)
        verdict = "Nothing was found in this time" if late else "Nothing helps"
        untried = f"; {late} more had no time: give it more --minutes" if late else ""
        none = (
            "the one lever that was tried does not raise" if tried == 1 else f"none of {tried} levers raises"
        )
        return (
            f"{verdict}: {none} the hard classes clearly, within the budget and above chance, on held-out "
            f"training images{untried}{best}."
        )
    hard, every = report["gain"]["hard"], report["gain"]["overall"]
    figures = (
        f"{format.gained(hard)} points on the hard third (95 %: {format.gain_interval(hard['ci'])}), "
        f"{format.gained(every)} overall"
    )
    kept = {share["name"]: share["hard"] for share in given.values() if share["kept"]}
    parts = ", ".join(f"{name} {format.signed(part)}" for name, part in kept.items())
    found = f"of {format.signed(sum(kept.values()))} on held-out training images the parts are: {parts}"
    if unused:
        found += f"; tried and not kept, at best: {unused}"
    overdue = [name for kind, name in KINDS.items() if kind not in given and _no_time(report, kind)]
    if overdue:
        found += f"; no time for: {', '.join(overdue)}"
    if format.verdict(hard) == "better":
        return f"{figures}; {found}."
    return f"Nothing helps clearly on the test images: {figures}; {found}."


def _no_time(report: Mapping[str, Any], kind: str | None = None) -> int:
    """The number of levers, of one kind or of all, that time ended before."""
    rows = (row for row in report["levers"] if kind in (None, row["kind"]))
    return sum(row["why"].startswith("no time") for row in rows)


def remarks(report: Mapping[str, Any]) -> list[str]:
    """Where what was kept is not certain: on the test images, or when it was added."""
    if report["gain"] is None:
        return []
    hard, said = report["gain"]["hard"], []
    if format.verdict(hard) != "better":
        said.append(
            "what was kept is not clearly better on the test images: on hard classes "
            f"{format.gained(hard)} points ({format.gain_interval(hard['ci'])}), so do not count on it"
        )
    likely = [row["name"] for row in report["levers"] if row["kept"] and not row["gain"]["hard"]["clear"]]
    if likely:
        names = ", ".join(f'"{name}"' for name in likely)
        said.append(f"likely, not certain, when added (80 % interval above 0, 95 % not): {names}")
    return said
