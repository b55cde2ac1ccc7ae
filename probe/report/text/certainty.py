"""Which differences between classes are more than chance, and where the cause of hard classes lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.report.text.format import long_tailed, plural

Row = Mapping[str, Any]  # of `test.by_class`
LEVEL = 0.05
LEAST_FALL = 0.02  # from easy to hard classes, below which there is nothing to explain
UNKNOWN = "unknown"  # the cause, where classes fall but nothing says why
AS_MUCH = 0.8  # of the head's fall: a classifier that falls so much falls as much


def classes_differ(rows: Sequence[Row]) -> bool:
    """Do the accuracies of classes differ more than chance would make them? (A chi-squared test.)"""
    known = [row for row in rows if row["n"]]
    images = sum(row["n"] for row in known)
    mean = sum(row["n"] * row["accuracy"] for row in known) / max(1, images)
    if len(known) < 2 or not 0 < mean < 1:
        return False
    from scipy.special import chdtrc

    statistic = sum(row["n"] * (row["accuracy"] - mean) ** 2 for row in known) / (mean * (1 - mean))
    return bool(chdtrc(len(known) - 1, statistic) < LEVEL)


def by_accuracy(rows: Sequence[Row]) -> list[Row]:
    """The classes that have test images, worst first."""
    return sorted((row for row in rows if row["n"]), key=lambda row: row["accuracy"])


def clearly_below(test: Mapping[str, Any]) -> list[Row]:
    """The classes, worst first, whose interval lies below the overall accuracy."""
    if not classes_differ(test["by_class"]):
        return []
    return [row for row in by_accuracy(test["by_class"]) if row["ci"][1] < test["top1"]]


def rank_note(rows: Sequence[Row], shown: int) -> str | None:
    """What the list of the `shown` worst classes cannot say; None where their rank is certain."""
    known = by_accuracy(rows)
    if len(known) < 2:
        return None
    if all(row["accuracy"] == known[0]["accuracy"] for row in known):
        return "all classes are equally good"
    if not classes_differ(known):
        return "classes differ no more than chance would make them: these ranks are noise"
    tied = sum(row["ci"][0] <= known[0]["ci"][1] for row in known[1:])
    if tied < shown:
        return None
    return f"which class is worst is uncertain: the intervals of {plural(tied, 'class')} overlap its own"


def falls(result: Mapping[str, Any]) -> dict[str, float]:
    """By how much each classifier (linear, knn, etf) falls from the easiest group to the hardest."""
    tables = ((result.get("diagnostics") or {}).get("features") or {}).get("accuracy_by") or {}
    members = list(((result.get("diagnostics") or {}).get("groups") or {}).values())
    if len(members) < 2:
        return {}

    def mean(values: Sequence[float | None], classes: Sequence[int]) -> float | None:
        known = [v for k in classes if (v := values[k]) is not None]
        return sum(known) / len(known) if known else None

    found = {}
    for name, values in tables.items():
        easy, hard = mean(values, members[0]), mean(values, members[-1])
        if easy is not None and hard is not None:
            found[name] = easy - hard
    return found


def cause(result: Mapping[str, Any]) -> str | None:
    """representation, classifier or both: what makes hard classes hard; None where nothing says it.

    On long-tailed data k-NN says nothing: a rare class has few neighbours to vote for it, so k-NN falls too.
    """
    fall = falls(result)
    if not {"linear", "knn"} <= fall.keys() or fall["linear"] < LEAST_FALL:
        return None
    if long_tailed(result["test"]["by_class"]):
        return UNKNOWN
    share = fall["knn"] / fall["linear"]
    return "representation" if share >= AS_MUCH else "both" if share >= AS_MUCH / 2 else "classifier"
