"""Small real data and backbones that several rooms' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT
from tests.support.painted_images import COLOURS, paint

# Processes that tests start find this package too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of four classes: 15 training and 8 test images each."""
    root = tmp_path_factory.mktemp("data") / "colours"
    rng = np.random.default_rng(0)
    for split, number in (("train", 15), ("test", 8)):
        for name, colour in COLOURS.items():
            paint(root / split / name, colour, number, rng)
    return root


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One feature cache for the whole session: what one test extracts, another finds."""
    return tmp_path_factory.mktemp("cache")
