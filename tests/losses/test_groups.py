"""Losses that act on groups which are not the classes, against plain Python in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from probe import losses
from probe.errors import UserError

N, K, G = 24, 3, 4
RNG = np.random.default_rng(0)
LOGITS = torch.from_numpy(RNG.normal(size=(N, K)))
LABELS = torch.from_numpy(RNG.integers(K, size=N))
GROUPS = torch.from_numpy(np.arange(N) % 3)  # the fourth is not in the batch
COUNTS = [50, 20, 5, 9]


def plain_losses():
    found = []
    for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        found.append(math.log(sum(math.exp(z) for z in row)) - row[label])
    return found


def group_means():
    found = plain_losses()
    mine = [[found[i] for i in range(N) if GROUPS[i] == g] for g in range(G)]
    return [sum(part) / len(part) if part else 0.0 for part in mine]


def made(name, **params):
    loss = losses.make(name, num_classes=K, class_counts=[30, 40, 14], group_counts=COUNTS, **params)
    loss.see_groups(GROUPS)
    return loss.double()


def test_group_dro_moves_the_weights_of_the_groups_in_the_batch():
    loss = made("dro", eta=0.5, adjustment=2.0)
    value = float(loss(LOGITS, LABELS))
    means = group_means()
    score = [0.25 * math.exp(0.5 * (m + 2.0 / math.sqrt(n))) for m, n in zip(means, COUNTS, strict=True)]
    q = [0.75 * s / sum(score[:3]) for s in score[:3]] + [0.25]
    assert loss.weights.tolist() == pytest.approx(q)
    assert value == pytest.approx(sum(w * m for w, m in zip(q, means, strict=True)))


def test_fairdro_takes_the_worst_weights_of_the_groups():
    loss = made("fairdro", rho=0.1)
    loss.start_epoch(0, 10)
    value = float(loss(LOGITS, LABELS))
    means = group_means()
    known = sum(means[:3]) / 3
    filled = [*means[:3], known]
    deviation = [m - sum(filled) / G for m in filled]
    length = math.sqrt(sum(d * d for d in deviation))
    q = [1 / G + math.sqrt(2 * 0.1 / G) * d / length for d in deviation]
    assert loss.weights.tolist() == pytest.approx(q)
    assert value == pytest.approx(sum(w * m for w, m in zip(q, means, strict=True)))


def test_class_balanced_weights_are_those_of_the_groups_sizes():
    value = float(made("cb", beta=0.9)(LOGITS, LABELS))
    weights = [(1 - 0.9) / (1 - 0.9**n) for n in COUNTS]
    weights = [w * G / sum(weights) for w in weights]
    each = [weights[int(g)] for g in GROUPS]
    mean = sum(w * v for w, v in zip(each, plain_losses(), strict=True)) / sum(each)
    assert value == pytest.approx(mean)


def test_groups_that_are_the_classes_are_what_a_loss_does_without_them():
    for name in ("dro", "fairdro", "cb"):
        plain = losses.make(name, num_classes=K, class_counts=COUNTS[:K]).double()
        grouped = losses.make(name, num_classes=K, class_counts=COUNTS[:K], group_counts=COUNTS[:K]).double()
        grouped.see_groups(LABELS)
        assert float(grouped(LOGITS, LABELS)) == pytest.approx(float(plain(LOGITS, LABELS)))


def test_a_loss_without_groups_and_a_batch_without_them_are_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"la takes no method\.groups: it acts on classes; cb, dro, fairdro act"
    ):
        losses.make("la", num_classes=K, class_counts=[1, 2, 3], group_counts=COUNTS)
    loss = losses.make("dro", num_classes=K, group_counts=COUNTS)
    with pytest.raises(UserError, match="call see_groups"):
        loss(LOGITS, LABELS)
