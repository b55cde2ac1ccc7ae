"""Threads are those that are free: by affinity, quota and load."""

from __future__ import annotations

import os

import pytest
import torch

from probe.solve import threads


@pytest.fixture
def machine(monkeypatch, tmp_path):
    def made(cores=8, load=0.0, quota="max 100000"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
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
    ],
)
def test_free_cores(machine, settings, free):
    machine(**settings)
    assert threads.free_cores() == free


def test_a_large_product_takes_what_is_free_and_leaves_the_setting_alone(machine, monkeypatch):
    machine(load=40.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads._free.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads.threads_for(10**9):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the user's word
        threads._free.cache_clear()
        with threads.threads_for(10**9):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        threads._free.cache_clear()
