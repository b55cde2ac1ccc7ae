"""The learning rate is a function of the step alone."""

import math

import pytest

from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.train.schedule import Falls, Schedule, check, factor


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


@pytest.mark.parametrize("milestones", [(0.5, 0.75), (10, 15), (0.5, 15)])
def test_steps_fall_at_milestones_in_epochs_or_parts_of_the_training(milestones):
    settings = TrainConfig(schedule="steps", milestones=milestones, milestone_factor=0.2)
    schedule = Schedule(1.0, 20 * 7, 0, Falls.of(settings, epochs=20, steps=7))
    rates = [schedule.lr(step) for step in range(20 * 7)]
    assert rates == pytest.approx([1.0] * 70 + [0.2] * 35 + [0.04] * 35)


def test_steps_have_the_same_warm_up_and_the_cosine_is_the_default():
    settings = TrainConfig(schedule="steps", milestones=0.5)
    schedule = Schedule(2.0, 20, 4, Falls.of(settings, epochs=10, steps=2))
    assert [schedule.lr(step) for step in (0, 3, 4, 9, 10)] == pytest.approx([0.5, 2, 2, 2, 0.2])
    assert Falls.of(TrainConfig(), epochs=10, steps=2) is None


def test_a_milestone_that_is_never_reached_is_refused_in_one_line():
    check(TrainConfig(schedule="steps", milestones=(30, 40), epochs=50))
    with pytest.raises(UserError, match=r"train.milestones=160 is never reached in train.epochs=100"):
        check(TrainConfig(schedule="steps", milestones=(160, 180), epochs=100))


def test_a_ramp_is_as_long_as_the_warm_up_or_the_part_that_a_loss_asks_for():
    schedule = Schedule(1.0, 100, 10)
    assert schedule.warmth(4) == pytest.approx(0.5)
    assert schedule.warmth(24, 0.5) == pytest.approx(0.5)
    assert schedule.warmth(4, 0.05) == pytest.approx(0.5)
    assert schedule.warmth(99, 0.5) == 1
