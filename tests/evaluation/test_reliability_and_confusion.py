"""A reliability diagram and a confusion matrix, each against a plain count."""

import numpy as np
import pytest

from probe.evaluation import metrics
from probe.evaluation.diagnostics import confusion_matrix


def test_bins_have_the_confidence_and_accuracy_of_their_images():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=(2, 500))
    correct = rng.uniform(size=(2, 500)) < confidence
    bins = metrics.reliability(confidence, correct, bins=5)
    assert len(bins) == 5
    assert sum(b["images"] for b in bins) == pytest.approx(500)
    for i, b in enumerate(bins):
        inside = (confidence > i / 5) & (confidence <= (i + 1) / 5)
        assert b["confidence"] == pytest.approx(confidence[inside].mean())
        assert b["accuracy"] == pytest.approx(correct[inside].mean())
        n, p, z = inside.sum() / 2, correct[inside].mean(), 1.96  # Wilson's interval, solved for its ends
        ends = np.roots([1 + z**2 / n, -(2 * p + z**2 / n), p**2])
        assert b["ci"] == pytest.approx(sorted(ends), abs=1e-3)
    gaps = [b["images"] * abs(b["confidence"] - b["accuracy"]) for b in bins]
    flat = metrics.calibration_error(confidence.ravel(), correct.ravel(), bins=5)
    assert sum(gaps) / 500 == pytest.approx(flat)


def test_counts_are_those_of_pairs_and_look_alikes_are_neighbours():
    labels = np.repeat(np.arange(6), 10)
    prediction = labels.copy()
    for true, taken in ((0, 5), (5, 0), (2, 4), (4, 2)):
        prediction[np.flatnonzero(labels == true)[:6]] = taken
    found = confusion_matrix.block(prediction, labels, 6)
    order = found["classes"]
    assert sorted(order) == list(range(6))
    for i, true in enumerate(order):
        for j, taken in enumerate(order):
            assert found["counts"][i][j] == ((labels == true) & (prediction == taken)).sum()
    assert abs(order.index(0) - order.index(5)) == abs(order.index(2) - order.index(4)) == 1
    assert found["n"] == [10] * 6


def test_of_many_classes_those_with_most_mistakes_are_kept():
    labels = np.repeat(np.arange(50), 4)
    prediction = labels.copy()
    prediction[labels == 7] = 31
    found = confusion_matrix.block(prediction, labels, 50, most=3)
    assert len(found["classes"]) == 3
    assert {7, 31} <= set(found["classes"])


def test_one_class_and_no_mistake_are_fine():
    found = confusion_matrix.block(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), 1)
    assert found == {"classes": [0], "counts": [[4]], "n": [4]}
