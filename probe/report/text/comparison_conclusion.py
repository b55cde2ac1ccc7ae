"""The headline of a comparison: which backbone, how certain that is, and whether a method helped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.text import format
from probe.report.text.format import gain_interval, gained, interval, percent, plural

Comparison = Mapping[str, Any]
MOST_SENTENCES = 3  # one per data set; of more data sets, one sentence counts them


def conclusion(comparison: Comparison) -> list[str]:
    """One sentence per data set about its backbones (a count where there are many), and one about methods."""
    blocks = comparison.get("backbones") or []
    said = [_best(block) for block in blocks] if len(blocks) <= MOST_SENTENCES else [_counted(blocks)]
    return [f"{sentence}." for sentence in (*said, _methods(comparison)) if sentence]


def pairs_of_best(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The best backbone of a data set against each other one."""
    best = block["backbones"][0]["name"]
    return [pair for pair in block["pairs"] if pair["first"] == best]


def _best(block: Mapping[str, Any]) -> str:
    best, second = block["backbones"][:2]
    pairs = pairs_of_best(block)
    close = [pair["second"] for pair in pairs if not pair["gain"]["clear"]]
    where = f"On {format.data(block['data'])}"
    accuracy = f"{percent(best['overall']['accuracy'])} % (95 %: {interval(best['overall']['ci'])})"
    gain = next(pair["gain"] for pair in pairs if pair["second"] == second["name"])
    ahead = f"{gained(gain)} points over {second['name']} ({gain_interval(gain['ci'])})"
    if not close:
        return f"{where}, {best['name']} is clearly the best backbone: {accuracy}, {ahead}"
    if len(close) == len(pairs):
        return f"{where}, no backbone is clearly best: {best['name']} has {accuracy}, {ahead}"
    clearly = format.listed([pair["second"] for pair in pairs if pair["gain"]["clear"]])
    return (
        f"{where}, {best['name']} has the highest accuracy, {accuracy}: clearly above {clearly}, not clearly "
        f"above {format.listed(close)}"
    )


def _counted(blocks: Sequence[Mapping[str, Any]]) -> str:
    """`a has the highest accuracy on 3 of 5 data sets (on 2 clearly above every other)`."""
    wins: dict[str, list[bool]] = {}
    for block in blocks:
        clear = all(pair["gain"]["clear"] for pair in pairs_of_best(block))
        wins.setdefault(block["backbones"][0]["name"], []).append(clear)
    told = [
        f"{name} on {len(found)} (clearly above every other on {sum(found)})"
        for name, found in sorted(wins.items(), key=lambda pair: -len(pair[1]))
    ]
    return f"Highest accuracy of {plural(len(blocks), 'data set')}: {format.listed(told)}"


def _methods(comparison: Comparison) -> str:
    """How often the methods clearly changed the hardest group."""
    last = [list(row["statistics"].items())[-1] for row in comparison["rows"]]
    gains = [statistic["gain"] for _, statistic in last if statistic["gain"]]
    if not gains:
        return ""
    (name, _), reference = last[-1], format.against(comparison["reference"], comparison.get("how"))
    where = "overall" if name == "overall" else f"on {name} classes"
    better = sum(g["clear"] and g["mean"] > 0 for g in gains)
    worse = sum(g["clear"] and g["mean"] < 0 for g in gains)
    if not better and not worse:
        return f"No run is clearly better or worse than {reference} {where}"
    told = [f"{n} {_be(n)} clearly {word}" for n, word in ((better, "better"), (worse, "worse")) if n]
    return f"Of {plural(len(gains), 'run')} against {reference}, {format.listed(told)} {where}"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
