"""How results are written, in every table and page: percentages, signed gains, verdicts, remarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"
NO_CHANGE = "no clear change"
UNEQUAL = 2  # largest class over smallest, in training images, from which on data is long-tailed
FEW_SEEDS = {
    1: "one seed only: the intervals describe these trained heads, not what other seeds would give",
    2: "two seeds hardly show how much seeds differ, so the intervals are wide; use three or more",
}
SAME_HEAD = "every seed gives the same head here, so only one was run; intervals cover test images only"
TONE = {
    "better": "better",
    "worse": "worse",
    NO_CHANGE: "unclear",
    UNKNOWN: "unclear",
}  # CSS classes


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as a percentage without the sign, `59.6`."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.{digits}f}"


def signed(fraction: float | None, digits: int = 1) -> str:
    """A gain in percentage points, `+2.0`, with a real minus sign; what rounds to 0 has no sign."""
    if fraction is None:
        return UNKNOWN
    rounded = f"{100 * fraction:+.{digits}f}"
    return rounded.lstrip("+-") if float(rounded) == 0 else rounded.replace("-", MINUS)


def coefficient(value: float) -> str:
    """A correlation, `+0.32`; what rounds to 0 has no sign."""
    return signed(value / 100, 2)


def interval(ci: Sequence[float] | None, digits: int = 1) -> str:
    """`58.2 to 61.0`."""
    return UNKNOWN if ci is None else " to ".join(percent(v, digits) for v in ci)


def gain_interval(ci: Sequence[float] | None, digits: int = 1, joiner: str = " to ") -> str:
    """`+0.4 to +3.6`; an interval that excludes 0 gets as many digits as it takes to see that."""
    if ci is None:
        return UNKNOWN
    if ci[0] > 0 or ci[1] < 0:
        digits = _digits(min(ci, key=abs), digits)
    return joiner.join(signed(v, digits) for v in ci)


def gained(gain: Mapping[str, Any], digits: int = 1) -> str:
    """The mean of a gain; a clear one gets as many digits as it takes not to look like 0."""
    return signed(gain["mean"], _digits(gain["mean"], digits) if gain["clear"] else digits)


def _digits(fraction: float, least: int) -> int:
    """The digits, at least `least`, at which a percentage does not round to 0."""
    return next((d for d in range(least, 9) if float(f"{100 * fraction:.{d}f}") != 0), least)


def verdict(gain: Mapping[str, Any] | None) -> str:
    """better, worse, or no clear change."""
    if gain is None:
        return UNKNOWN
    if not gain["clear"]:
        return NO_CHANGE
    return "better" if gain["mean"] > 0 else "worse"


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What to keep in mind about a run: its own remarks, and what its number of seeds cannot show."""
    run, asked = len(result["seeds"]), (result.get("recipe") or {}).get("seeds", 0)
    few = SAME_HEAD if asked > run else FEW_SEEDS.get(run)
    return [*(result.get("remarks") or []), *([few] if few else [])]


def look_first_totals(found: Mapping[str, Any]) -> list[str]:
    """What a `look_first` block says about the whole data set, one line each."""
    copies, forecast, expected = found["near_duplicates"], found["forecast"], found["suspects"]["expected"]
    lines = []
    if found["compared"]["train"] < found["images"]:
        some, images = found["compared"]["train"], found["images"]
        lines.append(f"neighbours were looked for among {some:,} of {images:,} training images")
    if expected is None:
        lines.append("wrong labels: the probe is too often wrong itself to tell")
    elif expected >= 0.5:
        lines.append(
            f"labels that may be wrong: about {expected:,.0f} of {found['images']:,} training images"
        )
    if copies["train"] or copies["test"]:
        odd = f", {plural(copies['other_label'], 'pair')} under two labels" if copies["other_label"] else ""
        lines.append(
            f"near-duplicates in train (cosine from {copies['cosine']:.3f}): of {copies['train']:,} training "
            f"and {copies['test']:,} test images{odd}"
        )
    if forecast["correlation"] is not None:
        by, value = " and ".join(forecast["by"]), coefficient(forecast["correlation"])
        with_what = "the probe's errors on held-out training images"
        lines.append(f"forecast of difficulty by {by}: rank correlation {value} with {with_what}")
    return lines


def method(result: Mapping[str, Any]) -> str:
    """What the run's own method is called beside its reference."""
    recipe = result.get("recipe") or {}
    return str(result.get("method") or (recipe.get("method") or {}).get("name") or "model")


def against(method: str, how: str | None) -> str:
    """`erm (frozen probe)`, `erm (same training)`: what a gain is measured against."""
    return f"{method} ({how})" if how else method


def data(name: str) -> str:
    """The short name of a data set: the last part of a path or a Hub id."""
    return name.rstrip("/").rpartition("/")[2] or name


def groups(result: Mapping[str, Any]) -> str:
    """`groups by crossfit`, `groups by reference runs/clip-rn50-pets-erm-1a2b3c4d`."""
    return " ".join(filter(None, ("groups by", result["groups_by"], result.get("groups_from"))))


def count_groups(
    result: Mapping[str, Any],
) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Groups by training images and their gains where the data is long-tailed: for each scheme that says more
    than "overall" does and is not what the result is grouped by anyway."""
    if not long_tailed(result["test"]["by_class"]):
        return {}
    gains = (result.get("versus") or {}).get("count_gain") or {}
    return {
        scheme: (groups, gains.get(scheme) or {})
        for scheme, groups in (result["test"].get("count_groups") or {}).items()
        if scheme != result.get("groups_by") and sum(bool(g["classes"]) for g in groups.values()) > 1
    }


def long_tailed(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Do the classes have so different numbers of training images that groups by them mean something?"""
    counts = [row["train_n"] for row in rows if row.get("train_n") is not None]
    return bool(counts) and max(counts) >= UNEQUAL * max(1, min(counts))


def place_in_ranking(comparison: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[int, float]]:
    """The order of a comparison's rows: the backbone with the highest accuracy first, then by hard gain."""
    ranked = [row["name"] for row in comparison["ranking"]["backbone"]]

    def place(row: Mapping[str, Any]) -> tuple[int, float]:
        gain = list(row["statistics"].values())[-1]["gain"]
        backbone = ranked.index(row["backbone"]) if row["backbone"] in ranked else len(ranked)
        return backbone, -gain["mean"] if gain else 0.0

    return place


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def seeds(result: Mapping[str, Any]) -> str:
    """`5 seeds`, or `seeds 2 to 4` of a run that does not begin with 0."""
    first, number = (result.get("recipe") or {}).get("first_seed", 0), len(result["seeds"])
    if not first:
        return plural(number, "seed")
    return f"seed {first}" if number == 1 else f"seeds {first} to {first + number - 1}"


def plural(number: int, noun: str) -> str:
    """`1 class`, `37 classes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}" + ("es" if noun.endswith("s") else "s")
