"""A backbone, a data set, a loss and a method of another package, all in one run from the command line."""

from __future__ import annotations

import json

from tests.methods.test_methods_from_outside import METHOD
from tests.support.outside_package import CODE, ROWS, install, python

LOSS = """
from probe.losses import LossSpec

BRIER = LossSpec("brier", "Brier score", "Brier 1950", "my_loss:Brier")
"""
LOSS_CLASS = """
from torch.nn import functional as F

from probe.losses.base import MeanLoss


class Brier(MeanLoss):
    def losses(self, logits, targets):
        wanted = F.one_hot(targets, self.num_classes).to(logits)
        return (logits.softmax(dim=1) - wanted).square().sum(dim=1), None
"""


def test_one_of_each_from_outside_makes_a_run_without_a_change_here(tmp_path):
    rows = {**ROWS, "losses": {"brier": "my_package:BRIER"}, "methods": {"sign": "my_package:SIGN"}}
    site = install(tmp_path / "site", CODE + LOSS + METHOD, rows)
    (site / "my_loss.py").write_text(LOSS_CLASS)
    words = ["-m", "probe.cli", "run", "--backbone", "my-net", "--data", "my-data", "--solver", "sgd"]
    words += ["--method", "sign(brier, size=0.01)", "--cache", tmp_path / "cache", "--out", tmp_path / "runs"]
    done = python(site, [*words, "train.epochs=20"])
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "runs").glob("*/result.json")
    result = json.loads(file.read_text())
    assert result["recipe"]["method"] == {"name": "sign", "loss": "brier", "size": 0.01}
    assert result["test"]["top1"] > 0.9  # it has learnt: three colours
