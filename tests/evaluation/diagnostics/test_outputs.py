"""Logit diagnostics against cases worked by hand, plain Python and their properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.evaluation.diagnostics import outputs


def some_logits(seed, n=40, k=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)) * 2, rng.integers(k, size=n)


def test_prediction_bias_by_hand():
    probability = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]])
    g_n, g_p = outputs.prediction_bias(probability, np.array([0, 1, 2]))
    np.testing.assert_allclose(g_n, [0.6, 0.3, 0.2])
    np.testing.assert_allclose(g_p, [0.7, 0.4, 0.8])


def test_prediction_bias_is_the_sum_of_the_paper():
    logits, labels = some_logits(0)
    g_n, g_p = outputs.prediction_bias(outputs.softmax(logits), labels)
    for k in range(5):
        negative = positive = 0.0
        for z, y in zip(logits, labels, strict=True):
            p = np.exp(z[k]) / sum(np.exp(v) for v in z)
            negative += p * (y != k)
            positive += p * (y == k)
        assert (g_n[k], g_p[k]) == (pytest.approx(negative), pytest.approx(positive))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_prediction_bias_sums_to_the_number_of_images_and_follows_the_classes(seed):
    logits, labels = some_logits(seed)
    g_n, g_p = outputs.prediction_bias(outputs.softmax(logits), labels)
    assert g_n.sum() + g_p.sum() == pytest.approx(len(labels))
    order = np.random.default_rng(seed).permutation(5)
    turned, _ = outputs.prediction_bias(outputs.softmax(logits[:, order]), np.argsort(order)[labels])
    np.testing.assert_allclose(turned, g_n[order])


def test_a_perfect_model_has_no_bias():
    labels = np.array([0, 1, 2, 2])
    g_n, g_p = outputs.prediction_bias(np.eye(3)[labels], labels)
    assert not g_n.any()
    np.testing.assert_array_equal(g_p, [1, 1, 2])


def test_softmax_survives_large_and_missing_logits():
    np.testing.assert_allclose(outputs.softmax(np.array([[1e4, 0.0, -np.inf]])), [[1, 0, 0]])


def test_logit_margins_by_hand_and_their_sign_is_the_decision():
    logits = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.5]])
    np.testing.assert_allclose(outputs.logit_margins(logits, np.array([0, 2])), [1, -0.5])
    logits, labels = some_logits(3)
    margins = outputs.logit_margins(logits, labels)
    np.testing.assert_array_equal(margins > 0, logits.argmax(1) == labels)
    for z, y, m in zip(logits, labels, margins, strict=True):
        assert m == pytest.approx(z[y] - max(v for j, v in enumerate(z) if j != y))


def test_quantiles_are_the_distribution_function_turned_round():
    values = np.arange(101.0)
    assert outputs.quantiles(values, 5) == [0, 25, 50, 75, 100]
    assert outputs.quantiles(np.array([])) == []


def test_top_confusions_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    prediction = np.array([1, 1, 0, 2, 1, 1, 2])
    confidence = np.array([0.5, 0.9, 1, 0.6, 1, 0.7, 1])
    first, second, third = outputs.top_confusions(prediction, labels, confidence)
    assert (first.true, first.predicted, first.count, first.rows) == (0, 1, 2, [1, 0])
    assert (second.true, second.predicted) == (1, 2)
    assert (third.true, third.predicted) == (2, 1)
    assert len(outputs.top_confusions(prediction, labels, confidence, number=1, examples=1)[0].rows) == 1


def test_a_perfect_model_confuses_nothing():
    labels = np.array([0, 1, 2])
    assert outputs.top_confusions(labels, labels, np.ones(3)) == []


def test_confusions_count_every_mistake():
    logits, labels = some_logits(5, n=200)
    prediction = logits.argmax(1)
    found = outputs.top_confusions(prediction, labels, np.ones(200), number=100)
    assert sum(c.count for c in found) == (prediction != labels).sum()
    assert [c.count for c in found] == sorted((c.count for c in found), reverse=True)


def test_class_means_leave_absent_classes_unknown():
    mean = outputs.class_mean(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2]), 3)
    np.testing.assert_array_equal(mean, [2, np.nan, 5])
