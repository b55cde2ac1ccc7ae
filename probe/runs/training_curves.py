"""How a training went, from its log: loss and learning rate by step, validation by epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

POINTS = 120  # of a seed's curve; of more steps, each point is the mean of several


def of_log(text: str) -> dict[str, Any]:
    """The `curves` block of the result, from the lines of `log.jsonl`.

    `steps` has the loss (a mean) and the learning rate up to a step, `epochs` what validation found after
    one. Each row names its seed.
    """
    rows = [json.loads(line) for line in text.splitlines()]
    steps = [row for row in rows if "lr" in row]
    epochs = [row for row in rows if "epoch" in row and "lr" not in row]
    keys = ("seed", "step", "epoch", "loss", "validation")
    return {
        "steps": [point for seed in _seeds(steps) for point in _thinned(seed)],
        "epochs": [{key: row[key] for key in keys if key in row} for row in epochs],
    }


def _seeds(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    return list(by_seed.values())


def _thinned(rows: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    width = -(-len(rows) // POINTS)
    for start in range(0, len(rows), width):
        part = rows[start : start + width]
        loss = sum(row["loss"] for row in part) / len(part)
        last = part[-1]
        numbers = {"loss": float(f"{loss:.5g}"), "lr": float(f"{last['lr']:.5g}")}
        yield {"seed": last["seed"], "step": last["step"], **numbers}
