"""In which of four situations a line of the tables was measured: what is trained, and on which data."""

from __future__ import annotations

from collections.abc import Mapping

TAILS = ("imbalance", "LT 100")  # in the title of a long-tailed data set
FROZEN, TRAINED = ("frozen", "margins"), ("finetune", "scratch", "long-tail")  # parts of the evidence
SITUATIONS = {
    "frozen features, balanced": (FROZEN, False),
    "frozen features, long tail": (FROZEN, True),
    "trained networks, balanced": (TRAINED, False),
    "trained networks, long tail": (TRAINED, True),
}


def situation(line: Mapping[str, str]) -> str:
    """The one that a line is about."""
    tail = any(word in line["data"] for word in TAILS)
    return next(name for name, (parts, own) in SITUATIONS.items() if line["part"] in parts and own == tail)
