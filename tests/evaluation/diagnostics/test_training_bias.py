"""Prediction bias on training rows: the lemma holds for the exact probe, and its departure is measured."""

import math

import numpy as np
import pytest
import torch

from probe.evaluation.diagnostics import training_bias
from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.probing.settings import ExactSolver, LossChoice

NONE = np.array([], dtype=np.int64)


@pytest.fixture(scope="module")
def problem():
    """Overlapping classes of 60, 25, 10 and 5 rows."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), [60, 25, 10, 5])
    X = rng.normal(size=(4, 6))[y] + rng.normal(size=(100, 6))
    return ProbeProblem(torch.from_numpy(X).float(), y, tuple("abcd"))


def bias_of(problem, method, blocks=1):
    head = exact.fit(problem, LossChoice(method, {}), ExactSolver(l2=1.0, tol=1e-12), NONE).head
    logits = head.scores(problem.raw).double().numpy()
    parts = np.array_split(np.arange(len(problem.y)), blocks)
    return logits, training_bias.of_blocks(((logits[p], problem.y[p]) for p in parts), 4)


def test_plain_cross_entropy_with_a_free_bias_gives_each_class_its_number_of_rows(problem):
    _, found = bias_of(problem, "erm")
    assert found.counts.tolist() == [60, 25, 10, 5]
    np.testing.assert_allclose(found.g_n + found.g_p, found.counts, rtol=1e-4)
    np.testing.assert_allclose(found.g_n, found.counts - found.g_p, rtol=1e-3, atol=1e-3)
    assert found.largest_excess < 1e-4


def test_logit_adjustment_departs_from_it_towards_rare_classes(problem):
    _, found = bias_of(problem, "la")
    assert found.largest_excess > 0.2
    assert found.excess[3] > 0 > found.excess[0]


def test_the_sums_are_those_of_a_plain_loop_and_do_not_depend_on_blocks(problem):
    logits, found = bias_of(problem, "mr2", blocks=7)
    g_n, g_p = [0.0] * 4, [0.0] * 4
    for row, label in zip(logits.tolist(), problem.y.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        for k, z in enumerate(row):
            (g_p if k == label else g_n)[k] += math.exp(z) / total
    np.testing.assert_allclose(found.g_n, g_n, rtol=1e-10)
    np.testing.assert_allclose(found.g_p, g_p, rtol=1e-10)
    assert sum(g_n) + sum(g_p) == pytest.approx(100)


def test_a_class_without_rows_departs_from_nothing():
    found = training_bias.of_blocks([(np.zeros((2, 3)), np.array([0, 1]))], 3)
    assert np.isnan(found.excess[2])
    assert found.largest_excess == pytest.approx(1 / 3)
