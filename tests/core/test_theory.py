"""Theorem 1's complexity term and the margins that minimise it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.class_stats import ClassStats
from probe.core.theory import class_terms, complexity, optimal_margins
from probe.errors import UserError


def some_stats(seed, k=6):
    g = torch.Generator().manual_seed(seed)
    draw = lambda: torch.rand(k, generator=g, dtype=torch.float64) + 0.01  # noqa: E731
    return ClassStats(torch.full((k,), 50.0, dtype=torch.float64), draw(), draw())


@given(st.integers(0, 10_000), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_no_margins_of_the_same_mean_beat_the_optimal_ones(seed, budget):
    stats = some_stats(seed)
    best = optimal_margins(stats.second_moment, mean_margin=budget)
    assert best.mean().item() == pytest.approx(budget)
    rival = torch.rand(6, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) + 0.05
    rival = rival * budget / rival.mean()
    assert complexity(stats, best) <= complexity(stats, rival) + 1e-9
    assert complexity(stats, best) <= complexity(stats, torch.full((6,), budget)) + 1e-9


def test_the_term_is_the_theorems_formula():
    stats = ClassStats(torch.tensor([10.0, 30.0]), torch.tensor([1.0, 3.0]), torch.tensor([1.0, 5.0]))
    margins = torch.tensor([1.0, 2.0])
    assert class_terms(stats, margins).tolist() == [2.0, 2.0]
    want = 4 * math.sqrt(2) * 1.5 * 2 / math.sqrt(40) * math.sqrt(2 + 2)
    assert complexity(stats, margins, weight_norm=1.5) == pytest.approx(want)


def test_margins_follow_the_cube_root_and_survive_zero_features():
    torch.testing.assert_close(optimal_margins(torch.tensor([1.0, 8.0])), torch.tensor([2 / 3, 4 / 3]))
    assert optimal_margins(torch.zeros(3), mean_margin=2.0).tolist() == [2, 2, 2]


@pytest.mark.parametrize("margins", [torch.ones(3), torch.tensor([1.0, 0.0])])
def test_bad_margins_are_refused(margins):
    stats = ClassStats(torch.ones(2), torch.ones(2), torch.ones(2))
    with pytest.raises(UserError, match="margins must be"):
        complexity(stats, margins)
