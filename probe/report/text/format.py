"""Numbers as people read them: percentages, signed gains, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"
NO_CHANGE = "no clear change"
FEW_SEEDS = {
    1: "one seed only: the intervals are about these trained heads, not about what other seeds would give",
    2: "two seeds hardly show how much seeds differ, so the intervals are wide; three or more narrow them",
}
SAME_HEAD = "every seed gives the same head here, so one was run: the intervals are about test images alone"
TONE = {"better": "better", "worse": "worse", NO_CHANGE: "unclear", UNKNOWN: "unclear"}  # styles of the page


def percent(fraction: float | None, digits: int = 1) -> str:
    return UNKNOWN if fraction is None else f"{100 * fraction:.{digits}f}"


def signed(fraction: float | None, digits: int = 1) -> str:
    """A gain in percentage points, `+2.0`, with a true minus sign; what rounds to nothing has no sign."""
    if fraction is None:
        return UNKNOWN
    rounded = f"{100 * fraction:+.{digits}f}"
    return rounded.lstrip("+-") if float(rounded) == 0 else rounded.replace("-", MINUS)


def interval(ci: Sequence[float] | None, digits: int = 1) -> str:
    return UNKNOWN if ci is None else " to ".join(percent(v, digits) for v in ci)


def gain_interval(ci: Sequence[float] | None, digits: int = 1, joint: str = " to ") -> str:
    """An interval that does not hold 0 never looks as if it did: it gets as many digits as that takes."""
    if ci is None:
        return UNKNOWN
    if ci[0] > 0 or ci[1] < 0:
        digits = _digits(min(ci, key=abs), digits)
    return joint.join(signed(v, digits) for v in ci)


def gained(gain: Mapping[str, Any], digits: int = 1) -> str:
    """The mean of a gain; a clear one never looks like nothing."""
    return signed(gain["mean"], _digits(gain["mean"], digits) if gain["clear"] else digits)


def _digits(fraction: float, least: int) -> int:
    """How many digits it takes to see a percentage; it ends where floats do."""
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


def against(method: str, how: str | None) -> str:
    """`erm (frozen probe)`, `erm (same training)`: what gains are gains over."""
    return f"{method} ({how})" if how else method


def data(name: str) -> str:
    """What people call a data set: the last part of a path or a hub id."""
    return name.rstrip("/").rpartition("/")[2] or name


def groups(result: Mapping[str, Any]) -> str:
    """`groups by crossfit`, `groups by reference runs/clip-rn50-pets-erm-1a2b3c4d`."""
    return " ".join(filter(None, ("groups by", result["groups_by"], result.get("groups_from"))))


def plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}" + ("es" if noun.endswith("s") else "s")
