"""A split can be cut, sent to other processes and shared by threads."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import probe.data
from probe.errors import UserError
from tests.support.tiny_datasets import write_folder, write_parquet


@pytest.fixture(params=["folder", "parquet", "compressed parquet", "digits"])
def train(request, tmp_path):
    if request.param == "digits":
        return probe.data.load("digits")["train"]
    if request.param == "folder":
        return probe.data.load(write_folder(tmp_path, each=8))["train"]
    compression = "snappy" if "compressed" in request.param else "none"
    write_parquet(tmp_path / "train.parquet", [0, 1] * 20, row_group_size=6, compression=compression)
    write_parquet(tmp_path / "test.parquet", [0, 1], seed=90)
    return probe.data.load(tmp_path)["train"]


def contents(split, indices):
    return [(split[i][0].tobytes(), split[i][1]) for i in indices]


def test_a_pickled_split_is_the_same_split(train):
    train[0]  # whatever is open by now must not hinder it
    copy = pickle.loads(pickle.dumps(train))  # noqa: S301
    assert contents(copy, range(5)) == contents(train, range(5))
    assert copy.ids == train.ids
    assert copy.fingerprint == train.fingerprint
    assert not copy.labels.flags.writeable


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_see_the_same_images(train, method):
    expected = contents(train, [7, 1, 12])
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(contents, [(train, [7, 1, 12])] * 3) == [expected] * 3


def test_threads_see_the_same_images(train):
    expected = contents(train, range(len(train)))[:16]
    fresh = pickle.loads(pickle.dumps(train))  # noqa: S301
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(16), 8)).tolist()
    with ThreadPoolExecutor(8) as pool:
        for i, got in zip(order, pool.map(lambda i: contents(fresh, [i])[0], order), strict=True):
            assert got == expected[i]


def test_a_subset_has_the_chosen_samples_in_the_chosen_order(train):
    part = train.subset([9, 2, 5], "part")
    again = part.subset([2, 0], "again")
    assert (part.name, len(part), len(again)) == ("part", 3, 2)
    assert part.ids == [train.ids[i] for i in (9, 2, 5)]
    assert contents(again, range(2)) == contents(train, [5, 9])
    assert part.class_names == train.class_names
    assert len({train.fingerprint, part.fingerprint, again.fingerprint}) == 3
    assert part.fingerprint != train.subset([2, 9, 5], "part").fingerprint
    assert part.fingerprint == train.subset([9, 2, 5], "another name").fingerprint


def test_a_subset_by_mask_or_from_the_end(train):
    mask = train.labels == 1
    assert (train.subset(mask, "ones").labels == 1).all()
    assert train.subset([-1], "last").ids == train.ids[-1:]
    assert contents(train, [-1]) == contents(train, [len(train) - 1])


def test_a_sample_cannot_stand_twice(train):
    with pytest.raises(UserError, match="more than once"):
        train.subset([3, 3], "twice")


def test_reading_past_the_end_stops_and_labels_cannot_be_changed(train):
    with pytest.raises(IndexError):
        train[len(train)]
    assert sum(1 for _ in train) == len(train)
    with pytest.raises(ValueError, match="read-only"):
        train.labels[0] = 1


def test_an_unknown_split_is_answered_with_the_known_ones(folder):
    data = probe.data.load(folder)
    with pytest.raises(UserError, match='no split "tset"; did you mean "test"'):
        data["tset"]
