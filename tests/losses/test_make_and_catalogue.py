"""The table of methods, and the errors a person can make."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import probe.losses
from probe.errors import UserError


def test_listing_and_describing_methods_imports_no_torch():
    code = (
        "import sys, probe.losses as l; [l.info(n) for n in l.names()]; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_row_is_complete_makes_its_loss_and_serialises():
    for name in probe.losses.names():
        row = probe.losses.info(name)
        assert row.takes in ("logits", "cosines")
        assert row.frozen in ("exact", "sgd", "no effect")
        assert set(row.needs) <= {"features", "counts"}
        assert row.title
        assert row.paper
        assert row.why
        assert row.balanced
        assert all(p.says for p in row.parameters)
        extra = {"frequency": [0.5, 0.6, 0.7]} if name == "ef" else {}
        loss = probe.losses.make(name, num_classes=3, class_counts=[9, 5, 2], **extra)
        assert loss.name == name
        assert name in repr(loss)
        json.dumps(dataclasses.asdict(row))


def test_exact_methods_declare_rows_and_others_do_not():
    from probe.core.class_stats import ClassStats

    h, y = torch.randn(9, 4), torch.arange(9) % 3
    for name in probe.losses.names():
        row = probe.losses.info(name)
        stats = ClassStats.from_features(h, y, 3, p=5 if name == "mr2-released" else 2)
        extra = {"frequency": [0.5, 0.6, 0.7]} if name == "ef" else {}
        loss = probe.losses.make(name, num_classes=3, class_counts=[9, 5, 2], stats=stats, **extra)
        assert (loss.adjustment() is not None) == (row.frozen == "exact")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: probe.losses.make("mr", num_classes=3), 'did you mean "mr2"'),
        (lambda: probe.losses.make("la", num_classes=3, class_counts=[1, 2, 3], tua=1), 'did you mean "tau"'),
        (lambda: probe.losses.make("erm", num_classes=3, tau=1), "it has none"),
        (lambda: probe.losses.make("la", num_classes=3), "needs class_counts: 3 numbers"),
        (lambda: probe.losses.make("la", num_classes=3, class_counts=[1, 2]), "must be 3 numbers"),
        (lambda: probe.losses.make("la", num_classes=3, class_counts=[1, -2, 3]), "non-negative"),
        (lambda: probe.losses.make("erm", num_classes=1), "at least 2"),
        (lambda: probe.losses.make("focal", num_classes=3, gamma=-1), "at least 0"),
        (lambda: probe.losses.make("gce", num_classes=3, q=2), "at most 1"),
        (lambda: probe.losses.make("focal", num_classes=3, gamma="two"), "must be a number"),
        (lambda: probe.losses.make("sphereface", num_classes=3, margin=2.5), "whole number"),
        (lambda: probe.losses.make("arcface", num_classes=3, guard=1), "true or false"),
        (lambda: probe.losses.make("mr2", num_classes=3, average="moment"), 'did you mean "moments"'),
        (lambda: probe.losses.make("mr2", num_classes=3, average="moments", p=5), "p = 2 only"),
        (lambda: probe.losses.make("mr2", num_classes=3, statistics="moments"), 'did you mean "statistic"'),
        (lambda: probe.losses.make("mr2", num_classes=3, cap=0.5), "cap must be at least 1"),
        (lambda: probe.losses.make("mr2", num_classes=3, cap="none"), "cap must be a number"),
        (lambda: probe.losses.make("mr2", num_classes=3, shrink=2.0), "shrink needs the class sizes"),
        (lambda: probe.losses.make("mr2", num_classes=3, scale="raw"), 'scale is "raw"'),
        (lambda: probe.losses.make("ef", num_classes=3), "needs frequency"),
        (lambda: probe.losses.make("dro", num_classes=3, adjustment=1.0), "needs class_counts"),
        (lambda: probe.losses.make("erm", num_classes=3)(torch.zeros(4, 5), torch.zeros(4).long()), "4 x 3"),
        (
            lambda: probe.losses.make("erm", num_classes=3)(torch.zeros(4, 3), torch.full((4,), 3)),
            "from 3 to 3",
        ),
        (lambda: probe.losses.make("erm", num_classes=3)(torch.zeros(4, 3), torch.full((4,), -1)), "from -1"),
        (
            lambda: probe.losses.make("mr2", num_classes=3)(
                torch.zeros(4, 3), torch.zeros(4).long(), torch.zeros(5, 2)
            ),
            "features must be 4 rows",
        ),
        (
            lambda: probe.losses.make("center", num_classes=3)(torch.zeros(4, 3), torch.zeros(4).long()),
            "needs the features",
        ),
    ],
)
def test_mistakes_get_one_clear_line(call, says):
    with pytest.raises(UserError) as error:
        call()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
