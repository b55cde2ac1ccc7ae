"""The learning rate is a function of the step alone."""

import math

import pytest

from probe.train.schedule import factor


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (55, 0.5), (99, 0.5 * (1 + math.cos(math.pi * 89 / 90)))],
)
def test_warm_up_is_linear_and_the_rest_is_half_a_cosine(step, value):
    assert factor(step, total=100, warmup=10) == pytest.approx(value)


def test_it_starts_at_the_top_without_warm_up_and_ends_near_zero():
    assert factor(0, 50, 0) == 1
    assert 0 < factor(49, 50, 0) < 0.002
    rates = [factor(step, 50, 5) for step in range(50)]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_a_warm_up_as_long_as_the_training_is_only_a_warm_up():
    assert [factor(step, 4, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
