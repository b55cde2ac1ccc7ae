"""Before its first step a training gives a loss the class statistics it starts from; its term then grows over
the warm-up, and images keep partners of their class."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from probe.core.class_stats import ClassStats
from probe.train.class_pass import chosen
from tests.support.training_world import K, blobs, feature_training, weights, wobbly_encoder


def seen_in(training, what):
    """What `what(loss)` is before each step."""
    course, step = [], training.method.step

    def watched(s):
        course.append(what(training.method.loss))
        return step(s)

    training.method.step = watched
    training.run()
    return course


@pytest.mark.parametrize("name", ["mr2", "sam(mr2)", "jtt(mr2, first_epochs=1)"])
def test_statistics_start_from_a_pass_over_the_networks_own_features(name):
    training = feature_training(name, encoder=wobbly_encoder(), epochs=1)
    X, y = blobs()
    with torch.no_grad():
        h = training.network.encoder.eval()(X)
    training.network.encoder.train()
    want = ClassStats.from_features(h, y, K).spread2
    course = seen_in(training, lambda loss: loss.spread.clone())
    torch.testing.assert_close(course[0], want, rtol=1e-5, atol=1e-6)
    stage = (
        feature_training("mr2").make_sampler().steps
    )  # jtt starts again from step 0, and so do its statistics
    if len(course) > stage:
        torch.testing.assert_close(course[stage], want, rtol=1e-5, atol=1e-6)
    assert not torch.equal(course[1], course[0])


def test_a_loss_that_starts_from_its_first_batches_gets_no_pass():
    course = seen_in(feature_training("mr2-paper", epochs=1), lambda loss: bool(loss.stats.seen.any()))
    assert course[:2] == [False, True]


def test_the_strength_grows_over_the_warm_up_and_stays():
    course = seen_in(feature_training("sam(mr2)", epochs=2, warmup_epochs=0.5), lambda loss: loss.strength)
    steps = len(course) // 2
    ramp = round(0.5 * steps)
    assert course[:ramp] == pytest.approx([(i + 1) / ramp for i in range(ramp)])
    assert set(course[ramp:]) == {1.0}


def test_a_training_that_stops_after_any_step_repeats_neither_pass_nor_ramp_to_other_bits(tmp_path):
    def training(folder):
        options = {"encoder": wobbly_encoder(), "epochs": 2, "warmup_epochs": 1.0, "partners": 4}
        return feature_training("mr2", folder=folder, **options)

    whole = training(None)
    whole.run()
    broken = training(tmp_path)
    step, made = broken.method.step, []

    def breaks(s):
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(s)
        return step(s)

    broken.method.step = breaks
    broken.settings = broken.settings.model_copy(update={"checkpoint_minutes": 1e-9})
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = training(tmp_path)
    again.run()
    assert weights(whole).keys() == weights(again).keys()
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())
    mine, theirs = (t.method.state_dict() for t in (whole, again))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_partners_are_kept_together_where_classes_outnumber_half_the_batch(tmp_path):
    few = feature_training("mr2", batch_size=2 * K)
    assert few.make_sampler().together == 1
    many = feature_training("mr2", batch_size=2 * K - 2, folder=tmp_path, epochs=1)
    sampler = many.make_sampler()
    assert sampler.together == 2
    for batch in sampler.epoch(0):
        assert np.bincount(sampler.labels[batch], minlength=K)[np.unique(sampler.labels[batch])].min() >= 2
    many.run()
    row = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert row["partners"]["mean"] >= 1
    assert row["partners"]["without"] == 0
    for other in (
        feature_training("erm", batch_size=2 * K - 2),
        feature_training("mr2-paper", batch_size=2 * K - 2),
        feature_training("mr2", batch_size=2 * K - 2, partners=1),
        feature_training("mr2", batch_size=2 * K - 2, sampler="balanced"),
    ):
        assert other.make_sampler().unit == 1
    assert feature_training("mr2", batch_size=16, partners=3).make_sampler().unit == 3
    assert feature_training("mr2", batch_size=8, micro_batch=2).make_sampler().unit == 2


def test_a_large_set_is_looked_at_in_part_with_equally_many_of_each_class():
    labels = np.repeat(np.arange(4), [1000, 500, 30, 2])
    rows = chosen(labels, seed=0, most=400)
    assert np.bincount(labels[rows]).tolist() == [100, 100, 30, 2]
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, chosen(labels, seed=0, most=400))
    assert not np.array_equal(rows, chosen(labels, seed=1, most=400))
    assert np.array_equal(chosen(labels, seed=0), np.arange(len(labels)))
