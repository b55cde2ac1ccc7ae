"""Curves of a training come from its log, thinned, seed by seed."""

import json

import pytest

from probe.runs.training_curves import POINTS, of_log


def test_curves_are_means_of_neighbouring_steps_and_keep_every_epoch():
    steps = [
        {"seed": seed, "step": s + 1, "epoch": s // 100, "loss": float(s), "lr": 0.1, "samples": 8}
        for seed in range(2)
        for s in range(300)
    ]
    epochs = [{"seed": 0, "epoch": 1, "stage": 0, "step": 100, "loss": 49.5, "validation": 0.5}]
    other = [{"seed": 0, "step": 0, "search": {"lr": 0.1}}]
    found = of_log("".join(json.dumps(row) + "\n" for row in [*other, *steps, *epochs]))
    assert found["epochs"] == [{"seed": 0, "step": 100, "epoch": 1, "loss": 49.5, "validation": 0.5}]
    first = [point for point in found["steps"] if point["seed"] == 0]
    assert len(first) == 100 <= POINTS
    assert first[0] == {"seed": 0, "step": 3, "loss": 1.0, "lr": 0.1}
    assert sum(3 * point["loss"] for point in first) == pytest.approx(sum(range(300)))


def test_a_log_without_steps_has_no_curves():
    assert of_log("") == {"steps": [], "epochs": []}
