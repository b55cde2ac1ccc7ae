"""Threads are those that are free: by affinity, quota and load, in solves, trainings and extraction."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from probe.core import threads
from probe.features import pipeline
from probe.solve import knn
from probe.solve.basis import Basis
from probe.train.loop import Training
from tests.support.killed_trainings import features


@pytest.fixture
def machine(monkeypatch, tmp_path):
    def made(cores=8, load=0.0, quota="max 100000", own=0.0):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr(threads, "own_load", lambda: own)
        monkeypatch.setattr(threads, "STAT", tmp_path / "none")
        (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(threads, "QUOTA", tmp_path / "cpu.max")

    return made


@pytest.mark.parametrize(
    ("settings", "free"),
    [
        ({}, 8),
        ({"load": 0.4}, 8),
        ({"load": 3.2}, 5),
        ({"load": 40.0}, 1),
        ({"quota": "200000 100000"}, 2),
        ({"quota": "50000 100000"}, 1),
        ({"quota": "not a quota"}, 8),
        ({"cores": 2, "load": 1.0}, 1),
        ({"cores": 2, "load": 2.0, "own": 2.0}, 2),  # all of it is ours
        ({"cores": 2, "load": 3.0, "own": 2.0}, 1),
        ({"cores": 2, "load": 0.0, "own": 2.0}, 2),
    ],
)
def test_free_cores(machine, settings, free):
    machine(**settings)
    assert threads.free_cores() == free


@pytest.fixture
def busy(machine, monkeypatch):
    """A process with two threads on a machine that others use wholly."""
    machine(load=40.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads._free.cache_clear()
    threads._numpy.cache_clear()  # another test may have loaded a library since
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    threads._free.cache_clear()


def test_a_large_product_takes_what_is_free_and_leaves_the_setting_alone(busy, monkeypatch):
    with threads.free_threads(10**9):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the user's word
    threads._free.cache_clear()
    with threads.free_threads(10**9):
        assert torch.get_num_threads() == 2
    with threads.free_threads(10):
        assert torch.get_num_threads() == 1


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_numpys_threads_are_those_that_are_free_too(busy):
    """They wait actively: on two cores that others used, an eigendecomposition took five times as long."""
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        with threads.free_threads():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_a_basis_is_decomposed_with_free_threads_only(busy, monkeypatch):
    seen = []
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda gram: seen.append(blas_threads()) or eigh(gram))
    with threadpool_limits(2, user_api="blas"):
        Basis(torch.randn(50, 4))
    assert seen == [{1}]


def test_a_failure_gives_threads_back(busy):
    with pytest.raises(ValueError, match=r"^it$"), threads.free_threads():
        raise ValueError("it")
    assert torch.get_num_threads() == 2


@pytest.fixture
def cores(monkeypatch, tmp_path):
    """Four cores of which some have idled since; the load average knows nothing of it."""

    def made(idle, elapsed=10.0, own=0.0):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
        monkeypatch.setattr(threads, "QUOTA", tmp_path / "none")
        ticks = os.sysconf("SC_CLK_TCK")
        rows = [
            f"cpu{core} 0 0 0 {1000 + int(share * elapsed * ticks)} 0 0" for core, share in enumerate(idle)
        ]
        stat = tmp_path / "stat"
        stat.write_text("cpu 1 2 3 4 5\n" + "\n".join([*rows, "cpu4 0 0 0 99999999 0 0", "intr 1"]))
        monkeypatch.setattr(threads, "STAT", stat)
        monkeypatch.setattr(threads, "_begun_idle", 4 * 1000 / ticks)
        now = time.monotonic(), time.process_time()
        monkeypatch.setattr(threads, "_begun", (now[0] - elapsed, now[1] - own * elapsed))

    return made


@pytest.mark.parametrize(
    ("idle", "own", "free"),
    [
        ((1, 1, 1, 1), 0.0, 4),  # whatever the load average still remembers
        ((0, 1, 1, 1), 1.0, 4),  # this process's own work
        ((0, 0, 1, 1), 0.0, 2),
        ((0, 0, 0.1, 1), 1.0, 2),
        ((0, 0, 0, 0), 0.0, 1),
    ],
)
def test_what_others_have_left_idle_is_free(cores, idle, own, free):
    cores(idle, own=own)
    assert threads.free_cores() == free


def test_what_was_long_ago_does_not_count(cores, monkeypatch):
    """An hour of idling, and now no core idles: the cores are watched for a moment."""
    cores((1, 1, 1, 1), elapsed=3600.0)
    began = time.monotonic()
    assert threads.free_cores() == 1
    assert time.monotonic() - began < 5 * threads.GLANCE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/stat")
def test_a_busy_process_is_seen_in_a_moment(monkeypatch):
    """On this very machine: one that computes takes a core away."""
    monkeypatch.setattr(threads, "QUOTA", threads.Path("none"))
    monkeypatch.setattr(threads, "_begun", (time.monotonic() - 3600, 0.0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(0.3)
        found = max(threads._others() for _ in range(5))
        other.kill()
    assert found > 0.5


def test_own_load_follows_the_systems_average(machine, monkeypatch):
    """Two cores' worth since 60 s: 2 (1 - 1/e) of the load average; since an hour: all of it."""
    for elapsed, share in ((60.0, 1 - math.exp(-1)), (3600.0, 1.0)):
        now = time.monotonic(), time.process_time()
        monkeypatch.setattr(threads, "_begun", (now[0] - elapsed, now[1] - 2 * elapsed))
        assert threads.own_load() == pytest.approx(2 * share, rel=1e-2)


def test_neighbours_are_found_with_free_threads_only(busy, monkeypatch):
    seen = []
    nearest = knn.nearest
    monkeypatch.setattr(
        knn, "nearest", lambda *given: seen.append(torch.get_num_threads()) or nearest(*given)
    )
    knn.votes(torch.eye(4), torch.arange(4), torch.eye(4), num_classes=4, k=1)
    assert (seen, torch.get_num_threads()) == ([1], 2)


def test_extraction_has_as_many_streams_as_there_are_free_cores(busy):
    assert pipeline.default_workers(torch.device("cpu")) == 1


def test_a_training_takes_free_threads_only(busy, tmp_path, monkeypatch):
    """That a resumed one takes its checkpoint's: tests/train/test_resume.py."""
    seen = []
    train_stage = Training._train_stage
    monkeypatch.setattr(
        Training, "_train_stage", lambda *given: seen.append(torch.get_num_threads()) or train_stage(*given)
    )
    features(tmp_path).run()
    assert (seen, torch.get_num_threads()) == ([1], 2)
