"""The terms on plain tensors: equal to plain loops, value and gradient, and what each promises."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch.nn import functional as F

import probe.losses
from probe.losses import functional
from probe.losses.functional.contrast import parametric_contrast
from tests.support import plain_terms

K, D, N, Q = 5, 4, 9, 17
STEP, DIRECTIONS = 5e-5, 3
COUNTS = [200.0, 5.0, 60.0, 9.0, 30.0]
TARGETS = {"sorted": [0, 0, 0, 1, 1, 2, 2, 3, 4], "unsorted": [3, 0, 2, 4, 1, 0, 3, 0, 1]}
KEY_LABELS = [4, 0, 1, 1, 3, 0, -1, 2, 2, 4, 0, 3, 1, 0, 0, 4, 2]  # one place is empty
OWN = [11, 1, -1, 0, 2, 5, 4, 10, 3]  # each image's own key, if any
batches = pytest.mark.parametrize("order", TARGETS)


def normal(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64) + 0.3


def term(name, order, **changes):
    """The arguments of a function: those that are differentiated, and all others."""
    targets, keys = TARGETS[order], normal(Q, D, seed=7)
    queue = {"targets": targets, "keys": keys, "key_labels": KEY_LABELS, "class_counts": COUNTS}
    weights = {"alpha": 0.3, "beta": 0.8, "gamma": 0.6, "temperature": 0.2}
    moved, fixed = {
        "bcl_contrast": (
            {"views": normal(2 * N, D), "centres": normal(K, D, seed=1)},
            {"targets": targets, "temperature": 0.1},
        ),
        "ncl": (
            {"expert_logits": [2 * normal(N, K, seed=m) for m in range(3)]},
            {"targets": targets, "class_counts": COUNTS, "hard": 3, "factor": 0.6},
        ),
        "gml_contrast": (
            {"queries": normal(N, D), "keys": queue.pop("keys") if name == "gml_contrast" else keys},
            {**queue, "temperature": 0.1},
        ),
        "paco": ({"logits": normal(N, K), "queries": normal(N, D, seed=1)}, {**queue, **weights}),
        "dro_lt_released": (
            {"features": normal(N, D), "margins": normal(K, seed=3).abs()},
            {"targets": targets, "prototypes": normal(K, D, seed=2), "temperature": 0.7},
        ),
    }[name]
    fixed = {**fixed, **{key: value for key, value in changes.items() if key not in moved}}
    return {**moved, **{key: value for key, value in changes.items() if key in moved}}, fixed


def plainly(name, moved, fixed):
    def listed(value):
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [v.tolist() for v in value]
        return value.tolist() if isinstance(value, torch.Tensor) else value

    arguments = {key: listed(value) for key, value in {**moved, **fixed}.items()}
    if "class_counts" in arguments:
        arguments["counts"] = arguments.pop("class_counts")
    return getattr(plain_terms, name)(**arguments)


def ours(name, moved, fixed):
    labels = {
        key: torch.tensor(fixed[key])
        for key in ("targets", "key_labels", "own")
        if fixed.get(key) is not None
    }
    return getattr(functional, name)(**moved, **{**fixed, **labels})


def flat(moved):
    return [t for value in moved.values() for t in (value if isinstance(value, list) else [value])]


def shifted(moved, along, step):
    """The same arguments, each moved along a direction."""
    directions = iter(along)
    move = lambda t: t.detach() + step * next(directions)  # noqa: E731
    return {k: [move(t) for t in v] if isinstance(v, list) else move(v) for k, v in moved.items()}


def check(name, order="unsorted", **changes):
    moved, fixed = term(name, order, **changes)
    for t in flat(moved):
        t.requires_grad_()
    value = ours(name, moved, fixed)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(plainly(name, moved, fixed), rel=1e-10, abs=1e-10)
    value.backward()
    for seed in range(DIRECTIONS):
        along = [normal(*t.shape, seed=50 + seed + 10 * n) for n, t in enumerate(flat(moved))]
        slope = sum(
            factor * plainly(name, shifted(moved, along, offset * STEP), fixed)
            for offset, factor in ((-2, 1), (-1, -8), (1, 8), (2, -1))
        ) / (12 * STEP)
        got = sum(float((t.grad * d).sum()) for t, d in zip(flat(moved), along, strict=True))
        assert got == pytest.approx(slope, rel=1e-7, abs=1e-7)


@batches
@pytest.mark.parametrize("name", ["bcl_contrast", "ncl", "gml_contrast", "paco", "dro_lt_released"])
def test_value_and_gradient_equal_plain_loops(name, order):
    check(name, order)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ncl", {"expert_logits": [normal(N, K)], "hard": 2}),
        ("ncl", {"hard": K}),
        ("gml_contrast", {"own": OWN}),
        ("gml_contrast", {"key_labels": [0, 0, 1, 1, 4, 0, -1, 2, 2, 4, 0, 4, 1, 0, 0, 4, 2]}),  # none of 3
        ("paco", {"own": OWN}),
        ("paco", {"gamma": 0.0}),
        ("paco", {"class_counts": None, "gamma": 1.0, "alpha": 0.05, "beta": 1.0}),
        ("paco", {"beta": 0.0, "key_labels": [4, 0, 1, 1, 4, 0, -1, 2, 2, 4, 0, 0, 1, 0, 0, 4, 2]}),
        ("dro_lt_released", {"temperature": 0.07}),
    ],
)
def test_other_settings_equal_plain_loops(name, changes):
    check(name, **changes)


def test_signatures_are_those_that_users_rely_on():
    names = {
        name: list(inspect.signature(getattr(functional, name)).parameters) for name in functional.__all__
    }
    assert names["bcl_contrast"] == ["views", "targets", "centres", "temperature"]
    assert names["ncl"] == ["expert_logits", "targets", "class_counts", "hard", "factor"]
    queue = ["targets", "queries", "keys", "key_labels", "class_counts"]
    assert names["gml_contrast"] == ["queries", "targets", *queue[2:], "temperature", "own"]
    assert names["paco"] == ["logits", *queue, "alpha", "beta", "gamma", "temperature", "own"]
    assert names["dro_lt_released"] == ["features", "targets", "prototypes", "margins", "temperature"]
    assert names["lff_step"] == ["loss_biased", "loss_debiased", "targets", "ids", "state", "ema"]
    assert names["tau_norm"] == ["weight", "tau"]
    assert names["lws"] == ["logits", "scales"]
    assert probe.losses.functional is functional


@pytest.mark.parametrize("name", ["bcl_contrast", "ncl", "gml_contrast", "paco", "dro_lt_released"])
def test_the_order_of_the_batch_does_not_matter(name):
    """DRO-LT as released fails here: it subtracts margins in the wrong order."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    moved, fixed = term(name, "unsorted")
    want = ours(name, moved, fixed)
    rows = {"logits": order, "queries": order, "features": order, "views": torch.cat([order, order + N])}
    turned = {k: v[rows[k]] if k in rows else v for k, v in moved.items()}
    if name == "ncl":
        turned["expert_logits"] = [z[order] for z in moved["expert_logits"]]
    fixed["targets"] = [fixed["targets"][i] for i in order.tolist()]
    torch.testing.assert_close(ours(name, turned, fixed), want)


# --- BCL ---


def test_bcl_of_equal_vectors_is_log_k_and_lengths_do_not_matter():
    moved, fixed = term("bcl_contrast", "unsorted")
    equal = {"views": torch.ones(2 * N, D).double(), "centres": 7 * torch.ones(K, D).double()}
    assert ours("bcl_contrast", equal, fixed).item() == pytest.approx(math.log(K), abs=1e-12)
    longer = {key: value * torch.arange(1, len(value) + 1).unsqueeze(1) for key, value in moved.items()}
    torch.testing.assert_close(ours("bcl_contrast", longer, fixed), ours("bcl_contrast", moved, fixed))


def test_bcl_sees_another_class_through_its_mean_only():
    """Where all members of class 1 are equal, more of them add their own losses and change no other's."""
    first, centres = normal(3, D), normal(K, D, seed=1)

    def total(images):
        view = torch.cat([first, centres[1:2].expand(images, D)])
        targets = torch.tensor([0, 2, 0] + [1] * images)
        loss = functional.bcl_contrast(torch.cat([view, view]), targets, centres, temperature=0.3)
        return 2 * len(targets) * loss.item()

    assert total(3) - total(2) == pytest.approx(total(2) - total(1), abs=1e-11)


# --- NCL ---


def test_ncl_of_one_expert_has_no_distillation_and_of_equal_ones_almost_none():
    moved, fixed = term("ncl", "unsorted")
    z = moved["expert_logits"][0]
    alone = ours("ncl", {"expert_logits": [z]}, fixed)
    assert alone.item() == ours("ncl", {"expert_logits": [z]}, {**fixed, "factor": 9.0}).item()
    three = ours("ncl", {"expert_logits": [z, z, z]}, fixed)
    assert abs(three.item() - 3 * alone.item()) < 1e-6


def test_ncl_with_all_classes_hard_counts_everything_twice():
    moved, fixed = term("ncl", "unsorted")
    whole = ours("ncl", moved, {**fixed, "hard": K, "factor": 0.0})
    balanced = [F.cross_entropy(z + torch.tensor(COUNTS).double().log(), torch.tensor(fixed["targets"]))
                for z in moved["expert_logits"]]  # fmt: skip
    torch.testing.assert_close(whole, 2 * sum(balanced))


# --- GML and PaCo ---


def test_gml_with_one_key_per_class_is_logit_adjustment_of_a_linear_head():
    queries, keys, y = normal(N, D), normal(K, D, seed=1), torch.tensor(TARGETS["unsorted"])
    got = functional.gml_contrast(queries, y, keys, torch.arange(K), COUNTS, temperature=0.1)
    cosines = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T
    la = probe.losses.make("la", num_classes=K, class_counts=COUNTS)
    torch.testing.assert_close(got, la(cosines / 0.1, y))
    twice = functional.gml_contrast(
        queries, y, keys.repeat(2, 1), torch.arange(K).repeat(2), COUNTS, temperature=0.1
    )
    torch.testing.assert_close(twice, got)


def test_gml_without_a_key_of_the_class_is_finite():
    queries, keys = normal(3, D).requires_grad_(), normal(2, D, seed=1)
    y, labels = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    for own in (None, torch.tensor([0, 1, -1])):
        value = functional.gml_contrast(queries, y, keys, labels, COUNTS, temperature=1e-3, own=own)
        (grad,) = torch.autograd.grad(value, queries)
        assert value.isfinite()
        assert grad.isfinite().all()
    none = functional.gml_contrast(queries, y, keys, torch.full((2,), -1), COUNTS, temperature=0.1)
    assert none.item() == 0


def test_gml_trains_keys_and_temperature():
    moved, fixed = term("gml_contrast", "unsorted")
    temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    keys = moved["keys"].requires_grad_()
    ours("gml_contrast", moved, {**fixed, "temperature": temperature}).backward()
    assert keys.grad.abs().sum() > 0
    assert temperature.grad.abs() > 0


def test_paco_without_contrast_is_logit_adjustment_and_keys_are_constants():
    moved, fixed = term("paco", "unsorted")
    got = ours("paco", moved, {**fixed, "alpha": 0.0, "gamma": 0.0})
    la = probe.losses.make("la", num_classes=K, class_counts=COUNTS)
    torch.testing.assert_close(got, la(moved["logits"], torch.tensor(fixed["targets"])))
    keys = fixed["keys"].requires_grad_()
    moved["queries"].requires_grad_()
    ours("paco", moved, fixed).backward()
    assert keys.grad is None


def test_paco_of_similarities_trains_keys():
    logits, similarity = normal(N, K), normal(N, Q, seed=2).requires_grad_()
    y, labels = torch.tensor(TARGETS["sorted"]), torch.tensor(KEY_LABELS)
    settings = {"alpha": 0.1, "beta": 1.0, "gamma": 1.0}
    parametric_contrast(logits, y, similarity, labels, COUNTS, **settings).backward()
    assert (similarity.grad[:, labels >= 0] != 0).all()
    assert (similarity.grad[:, labels < 0] == 0).all()


def test_smoothed_paco_gives_a_part_of_the_label_to_the_other_classes():
    logits, similarity, y = normal(N, K), normal(N, Q, seed=2), torch.tensor(TARGETS["unsorted"])
    labels, settings = torch.tensor(KEY_LABELS), {"alpha": 0.1, "beta": 0.7, "gamma": 0.5}
    got = parametric_contrast(logits, y, similarity, labels, COUNTS, **settings, smoothing=0.2)
    expected, prior = [], torch.tensor(plain_terms.log_prior(COUNTS), dtype=torch.float64)
    rows = zip((logits + prior).tolist(), similarity.tolist(), y.tolist(), strict=True)
    for z, s, label in rows:
        keys = [(value, key) for value, key in zip(s, KEY_LABELS, strict=True) if key >= 0]
        total = math.log(sum(map(math.exp, z)) + 0.5 * sum(math.exp(value) for value, _ in keys))
        parts = [(0.7 * (0.8 if k == label else 0.2 / (K - 1)), z[k]) for k in range(K)]
        parts += [(0.1, value) for value, key in keys if key == label]
        expected.append(-sum(w * (v - total) for w, v in parts) / sum(w for w, _ in parts))
    assert got.item() == pytest.approx(sum(expected) / len(expected), abs=1e-10)


# --- DRO-LT ---


def test_dro_lt_grows_with_its_margins_and_is_finite_on_a_prototype():
    moved, fixed = term("dro_lt_released", "unsorted")
    more = {**moved, "margins": moved["margins"] + 0.5}
    assert ours("dro_lt_released", more, fixed) > ours("dro_lt_released", moved, fixed)
    y = torch.tensor(fixed["targets"])
    features = fixed["prototypes"][y].clone().requires_grad_()
    value = functional.dro_lt_released(
        features, y, fixed["prototypes"], torch.zeros(K).double(), temperature=1.0
    )
    (grad,) = torch.autograd.grad(value, features)
    assert grad.isfinite().all()
    together = functional.dro_lt_released(
        torch.ones(N, D).double(), y, torch.ones(K, D).double(), torch.zeros(K).double(), temperature=1.0
    )
    assert together.item() == pytest.approx(math.log(N))


# --- LfF ---


def lff_batches():
    for step, ids in enumerate(([3, 0, 7, 5], [1, 3, 0, 9], [5, 2, 7, 8], [9, 3, 1, 0])):
        losses = normal(2, 4, seed=step).abs()
        yield losses[0], losses[1], [i % 3 for i in ids], ids


def test_lff_weights_and_memory_equal_plain_loops():
    state, plain = None, None
    for b, d, targets, ids in lff_batches():
        before = None if state is None else tuple(t.clone() for t in state)
        old = state
        weights, state = functional.lff_step(
            b.requires_grad_(), d, torch.tensor(targets), torch.tensor(ids), old, ema=0.7
        )
        want, plain = plain_terms.lff_step(b.tolist(), d.tolist(), targets, ids, plain, ema=0.7)
        assert weights.dtype == torch.float64
        assert not weights.requires_grad
        torch.testing.assert_close(weights, torch.tensor(want, dtype=torch.float64), rtol=1e-10, atol=1e-10)
        assert before is None or all(torch.equal(a, c) for a, c in zip(before, old, strict=True))
        for i, (biased, debiased, label) in plain.items():
            assert state.biased[i].item() == pytest.approx(biased, rel=1e-12)
            assert state.debiased[i].item() == pytest.approx(debiased, rel=1e-12)
            assert state.labels[i] == label


def test_lff_weights_lie_between_0_and_1_and_equal_models_give_a_half():
    state = None
    for b, _, targets, ids in lff_batches():
        weights, state = functional.lff_step(b, b, torch.tensor(targets), torch.tensor(ids), state, ema=0.7)
        torch.testing.assert_close(weights, torch.full_like(weights, 0.5), rtol=0, atol=1e-6)
    for b, d, targets, ids in lff_batches():
        weights, state = functional.lff_step(
            b, 9 * d, torch.tensor(targets), torch.tensor(ids), state, ema=0.7
        )
        assert ((weights >= 0) & (weights <= 1)).all()


def test_lff_of_a_class_without_any_loss_and_of_repeated_ids():
    zero, y = torch.zeros(3).double(), torch.tensor([0, 0, 1])
    weights, _ = functional.lff_step(zero, zero, y, torch.tensor([0, 1, 2]), None, ema=0.7)
    assert weights.isfinite().all()
    b = torch.tensor([1.0, 3.0, 5.0]).double()
    _, state = functional.lff_step(b, b, torch.zeros(3).long(), torch.tensor([1, 1, 0]), None, ema=0.7)
    assert state.biased.tolist() == [5.0, 2.0]


# --- second stages ---


def test_tau_norm_and_lws_equal_plain_loops():
    weight, scales = normal(K, D), normal(K, seed=1)
    for tau in (0.0, 0.6, 1.0, 2.0):
        want = torch.tensor(plain_terms.tau_norm(weight.tolist(), tau=tau), dtype=torch.float64)
        torch.testing.assert_close(functional.tau_norm(weight, tau=tau), want, rtol=1e-10, atol=1e-10)
    assert torch.equal(functional.tau_norm(weight, tau=0), weight)
    torch.testing.assert_close(functional.tau_norm(weight, tau=1).norm(dim=1), torch.ones(K).double())
    assert functional.tau_norm(torch.zeros(2, 3), tau=1).isfinite().all()
    logits = normal(N, K)
    want = torch.tensor(plain_terms.lws(logits.tolist(), scales.tolist()), dtype=torch.float64)
    torch.testing.assert_close(functional.lws(logits, scales), want, rtol=1e-12, atol=1e-12)
    assert torch.equal(functional.lws(logits, torch.ones(K).double()), logits)
