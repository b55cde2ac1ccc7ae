"""The likely reasons why a class is hard: a table of measures, each with the level at which it is mentioned.

A reason's strength is its measure over its level; the strongest is the likely reason. The levels are round
numbers, settled by eye on training images of pets and digits; no test image had a part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClassFacts:
    """What is known about one class; None where it cannot be known."""

    name: str
    count: int  # training images
    others_count: float  # the median of the other classes
    accuracy: float | None  # of cross-fitted plain probes on its training images
    rival: str | None  # the class that it is mistaken for most often
    mistaken: float  # share of its images that is mistaken for the rival
    back: float  # share of the rival's images that is mistaken for this class
    spread: float | None  # its spread over the median of the other classes
    spread_above: float | None  # share of the other classes whose spread is smaller
    own_neighbours: float | None  # share of its images' neighbours that is of the class
    others_neighbours: float | None  # the median of the other classes
    wrong_labels: float | None  # expected number of wrong labels
    wrong_interval: tuple[float | None, float | None]
    repeated: int  # its images that have a near-duplicate in train
    conflicting: int  # its images that have a near-duplicate under another label in train

    @property
    def both_ways(self) -> bool:
        """Are both classes mistaken for each other, neither more than twice as often?"""
        return min(self.mistaken, self.back) >= 0.5 * max(self.mistaken, self.back) > 0


@dataclass(frozen=True)
class Reason:
    """A row of the table."""

    name: str
    level: float  # of the measure, from which on the reason is mentioned
    measure: Callable[[ClassFacts], float]
    text: Callable[[ClassFacts], str]

    def strength(self, facts: ClassFacts) -> float:
        """1 where it is just worth mentioning."""
        return self.measure(facts) / self.level


def _confused(f: ClassFacts) -> str:
    there, back = percent(f.mistaken), percent(f.back)
    if f.both_ways:
        return f"confused with {f.rival}, both ways ({there} and {back})"
    return f"mistaken for {f.rival}, one way ({there}, back {back})"


def _few(f: ClassFacts) -> str:
    return f"few images: {f.count}, others {f.others_count:.0f}" if f.count else "no training images"


def _wrong(f: ClassFacts) -> str:
    low, high = f.wrong_interval
    about = f"about {f.wrong_labels or 0:.0f} of {f.count}"
    return f"suspect labels: {about} (95 %: {low or 0:.0f} to {high or 0:.0f})"


def _unlike(f: ClassFacts) -> str:
    place = "the largest" if f.spread_above == 1 else f"above {percent(f.spread_above)} of them"
    return f"unlike each other: spread {f.spread or 0:.2f} times that of others, {place}"


def _mixed(f: ClassFacts) -> str:
    own, others = percent(f.own_neighbours), percent(f.others_neighbours)
    return f"among other classes: {own} of its neighbours are its own, others {others}"


def _conflicting(f: ClassFacts) -> str:
    return f"near-duplicates under another label: {f.conflicting} of {f.count} images"


def _repeated(f: ClassFacts) -> str:
    return f"the same images again: {f.repeated} of {f.count} have a near-duplicate in train"


def percent(share: float | None) -> str:
    """`31 %`."""
    return f"{100 * (share or 0):.0f} %"


REASONS = (
    Reason("confused", 0.1, lambda f: f.mistaken if f.mistaken * f.count >= 2 else 0.0, _confused),
    Reason("few images", 2.0, lambda f: f.others_count / max(f.count, 0.5), _few),
    Reason("suspect labels", 0.01, lambda f: (f.wrong_interval[0] or 0) / max(f.count, 1), _wrong),
    Reason("unlike images", 1.2, lambda f: f.spread or 0.0, _unlike),
    Reason("among others", 0.4, lambda f: 0.0 if f.own_neighbours is None else 1 - f.own_neighbours, _mixed),
    Reason("conflicting duplicates", 0.02, lambda f: f.conflicting / max(f.count, 1), _conflicting),
    Reason("repeated images", 0.2, lambda f: f.repeated / max(f.count, 1), _repeated),
)


def of_class(facts: ClassFacts) -> list[dict[str, Any]]:
    """The reasons that are worth mentioning, the strongest first."""
    found = [(reason.strength(facts), reason) for reason in REASONS]
    return [
        {"reason": reason.name, "text": reason.text(facts), "strength": float(f"{strength:.4g}")}
        for strength, reason in sorted(found, key=lambda pair: -pair[0])
        if strength >= 1
    ]


def none_found(facts: ClassFacts) -> str:
    """What to say about a class that no reason fits."""
    if facts.accuracy is None or facts.accuracy == 1:
        return "nothing stands out"
    wrong, most = percent(1 - facts.accuracy), percent(facts.mistaken)
    return f"no single reason: {wrong} mistaken, at most {most} for one class"
