"""The validation cut is stratified, seeded and recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.data import holdout_digest, stratified_holdout
from probe.errors import UserError


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.floats(0.01, 0.99), st.integers(0, 5))
def test_the_sides_partition_the_rows_and_no_class_is_lost(labels, fraction, seed):
    labels = np.array(labels)
    keep, cut = stratified_holdout(labels, fraction, seed)
    assert sorted([*keep, *cut]) == list(range(len(labels)))
    for label in np.unique(labels):
        total = (labels == label).sum()
        taken = (labels[cut] == label).sum()
        assert taken == (0 if total == 1 else np.clip(np.rint(fraction * total), 1, total - 1))


def test_it_depends_on_the_seed_and_on_nothing_else():
    labels = np.repeat(np.arange(5), 20)
    keep, cut = stratified_holdout(labels, 0.2, 3)
    assert np.array_equal(cut, stratified_holdout(labels, 0.2, 3)[1])
    assert not np.array_equal(cut, stratified_holdout(labels, 0.2, 4)[1])
    assert np.bincount(labels[cut]).tolist() == [4] * 5
    assert (np.diff(cut) > 0).all()
    assert (np.diff(keep) > 0).all()


def test_a_fraction_outside_the_unit_interval_is_refused():
    for fraction in (0, 1, 1.5, -0.1, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            stratified_holdout(np.array([0, 0, 1]), fraction, 0)


def test_the_digest_names_the_samples_not_their_order():
    assert holdout_digest(["a", "b"]) == holdout_digest(["b", "a"])
    assert len({holdout_digest(ids) for ids in (["a", "b"], ["ab"], ["a", "c"], [])}) == 4
