"""Batches of same-class pairs."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader

from probe.errors import UserError
from probe.losses.pair_sampler import ClassPairSampler

LABELS = np.repeat(np.arange(7), [30, 12, 8, 8, 5, 2, 1])


def test_every_batch_holds_the_stated_pairs():
    labels = np.repeat(np.arange(6), 10)
    sampler = ClassPairSampler(labels, classes=4, per_class=3)
    assert str(sampler) == "4 classes x 3 images: 12 same-class pairs per batch"
    for batch in sampler:
        assert len(set(batch)) == len(batch) == 12
        counts = np.bincount(labels[batch], minlength=6)
        assert sorted(counts[counts > 0]) == [3] * 4
        assert (counts * (counts - 1) // 2).sum() == sampler.pairs


def test_an_epoch_is_about_one_pass_and_classes_take_turns():
    sampler = ClassPairSampler(LABELS, classes=3, per_class=2)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 11
    shown = np.bincount([k for b in batches for k in set(LABELS[b])], minlength=7)
    assert shown.max() - shown.min() <= 1
    assert "on average (1 classes have fewer than 2 images)" in str(sampler)


def test_images_of_a_class_are_all_used_before_any_repeats():
    labels = np.repeat(np.arange(2), 6)
    batches = list(ClassPairSampler(labels, classes=2, per_class=2))
    assert sorted(i for b in batches for i in b) == list(range(12))


def test_the_same_seed_and_epoch_give_the_same_batches():
    a, b = (ClassPairSampler(LABELS, classes=3, seed=5) for _ in range(2))
    assert list(a) == list(b)
    b.set_epoch(1)
    assert list(a) != list(b)


def test_it_is_a_batch_sampler():
    loader = DataLoader(list(range(len(LABELS))), batch_sampler=ClassPairSampler(LABELS, classes=2))
    assert all(len(batch) <= 4 for batch in loader)


@pytest.mark.parametrize("kw", [{"classes": 8}, {"classes": 0}, {"classes": 2, "per_class": 1}])
def test_impossible_batches_are_refused(kw):
    with pytest.raises(UserError):
        ClassPairSampler(LABELS, **kw)
