"""Every test has its own cache and, when it asks, a tiny data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_datasets import write_folder, write_parquet_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "photos")


@pytest.fixture
def parquet_folder(tmp_path) -> Path:
    return write_parquet_folder(tmp_path / "rows")
