"""Every epoch holds exactly the samples that its sampler promises, on any number of processes."""

import numpy as np
import pytest

from probe.errors import UserError
from probe.train.inputs.sampler import KINDS, Sampler

LONG_TAIL = np.repeat([0, 1, 2, 3], [400, 100, 25, 4])


def sampler(kind="instance", labels=LONG_TAIL, **options):
    return Sampler(kind, labels, **{"batch_size": 64, "seed": 0, **options})


def counts(kind, epoch=0):
    return np.bincount(LONG_TAIL[sampler(kind).order(epoch)], minlength=4)


def test_instance_shows_every_sample_once_and_each_epoch_in_another_order():
    s = sampler()
    assert sorted(s.order(0)) == list(range(len(LONG_TAIL)))
    assert not np.array_equal(s.order(0), s.order(1))
    assert np.array_equal(s.order(1), sampler().order(1))
    assert not np.array_equal(s.order(0), sampler(seed=1).order(0))


def test_balanced_and_square_root_show_classes_as_often_as_they_should():
    n = len(LONG_TAIL)
    assert counts("balanced").sum() == counts("sqrt").sum() == n
    assert np.ptp(counts("balanced")) <= 1
    wanted = np.sqrt([400, 100, 25, 4]) / np.sqrt([400, 100, 25, 4]).sum() * n
    assert np.abs(counts("sqrt") - wanted).max() <= 1


def test_a_rare_class_repeats_its_samples_evenly():
    shown = np.bincount(sampler("balanced").order(0), minlength=len(LONG_TAIL))
    rare, common = shown[LONG_TAIL == 3], shown[LONG_TAIL == 0]
    assert np.ptp(rare) <= 1
    assert rare.min() >= 32
    assert common.max() <= 1


def test_pairs_keep_partners_of_one_class_together_and_miss_nobody():
    s = sampler("pairs", processes=2, micro_batch=6)
    order = s.order(0).reshape(-1, 2)
    assert np.array_equal(LONG_TAIL[order[:, 0]], LONG_TAIL[order[:, 1]])
    assert set(order.ravel()) == set(range(len(LONG_TAIL)))
    assert (order[:, 0] != order[:, 1]).all()
    for batch in s.epoch(0):
        for rank in range(2):
            for part in s.parts(batch, rank):
                pairs = LONG_TAIL[part].reshape(-1, 2)
                assert np.array_equal(pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("micro_batch", [None, 2, 5])
def test_processes_share_each_batch_without_loss_or_overlap(kind, processes, micro_batch):
    s = sampler(kind, processes=processes, micro_batch=micro_batch)
    alone = sampler(kind).epoch(0)
    for batch, whole in zip(s.epoch(0), alone, strict=True):
        assert np.array_equal(batch, whole)
        shares = [s.parts(batch, rank) for rank in range(processes)]
        assert np.array_equal(np.concatenate([p for share in shares for p in share]), batch)
        assert len({len(share) for share in shares}) == 1
        weights = s.weights(len(batch))
        assert sum(weights) == pytest.approx(1)
        for number, weight in enumerate(weights):
            assert weight == pytest.approx(sum(len(share[number]) for share in shares) / len(batch))
    assert s.steps == len(alone)


def test_a_rest_too_small_for_every_process_joins_the_batch_before_it():
    sizes = [len(batch) for batch in sampler(labels=np.zeros(65, int)).epoch(0)]
    assert sizes == [65]
    sizes = [len(batch) for batch in sampler(labels=np.zeros(67, int), processes=4).epoch(0)]
    assert sizes == [67]
    sizes = [len(batch) for batch in sampler(labels=np.zeros(68, int), processes=4).epoch(0)]
    assert sizes == [64, 4]


def test_repeated_samples_stand_as_often_as_asked():
    repeats = np.where(np.arange(len(LONG_TAIL)) % 7 == 0, 5, 1)
    order = sampler(repeats=repeats).order(0)
    assert np.array_equal(np.bincount(order), repeats)


def test_a_batch_smaller_than_one_pair_or_one_sample_a_process_is_refused():
    with pytest.raises(UserError, match=r"smaller than one class pair .* use at least 2"):
        sampler("pairs", batch_size=1)
    with pytest.raises(UserError, match=r"smaller than one class pair on each of 4 .* use at least 8"):
        sampler("pairs", batch_size=6, processes=4)
    with pytest.raises(UserError, match="micro_batch 1 is smaller than one class pair"):
        sampler("pairs", micro_batch=1)
    with pytest.raises(UserError, match="smaller than one sample on each of 65"):
        sampler(processes=65)
    with pytest.raises(UserError, match="3 training samples are too few for 4"):
        sampler(labels=np.zeros(3, int), processes=4)


def test_images_of_a_class_are_kept_together_on_every_process_and_shown_once():
    s = sampler(together=4, batch_size=24, processes=2, micro_batch=8)
    counts = np.bincount(LONG_TAIL)
    order = s.order(0)
    assert np.bincount(LONG_TAIL[order]).tolist() == [4 * -(-n // 4) for n in counts]
    assert set(order) == set(range(len(LONG_TAIL)))
    for batch in s.epoch(0):
        for rank in range(2):
            for part in s.parts(batch, rank):
                groups = LONG_TAIL[part].reshape(-1, 4)
                assert (groups == groups[:, :1]).all()
    large = [k for k, n in enumerate(counts) if n >= 8]
    for group in order.reshape(-1, 4):
        if LONG_TAIL[group[0]] in large:  # filled up with others, not with copies
            assert len(set(group)) == 4
    with pytest.raises(UserError, match="smaller than 4 images of a class"):
        sampler(together=4, batch_size=3)


@pytest.mark.parametrize("size", [2, 4])
def test_batches_of_groups_hold_as_many_classes_as_they_can(size):
    """Else classes that are confused would seldom meet: drawn at random, 32 pairs hold 22 of 37 classes."""
    s = sampler(labels=np.repeat(np.arange(37), 48), batch_size=64, together=size)
    first, second = s.epoch(0), s.epoch(1)
    for batch in (*first, *second):
        assert len(np.unique(s.labels[batch])) == len(batch) // size
    met = {frozenset(s.labels[batch].tolist()) for epoch in (first, second) for batch in epoch}
    assert len(met) > 20  # other classes from batch to batch


def test_partners_are_counted_in_what_is_computed_at_once():
    labels = np.array([0, 0, 0, 1, 1, 2])
    met = sampler(labels=labels, batch_size=6).partners(0)
    assert met == {"mean": (3 * 2 + 2 * 1 + 0) / 6, "without": 1 / 6}
