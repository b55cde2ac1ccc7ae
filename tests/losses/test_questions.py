"""What others ask a loss, so that nobody has to recognise one."""

from __future__ import annotations

import inspect

import pytest
import torch

import probe.losses
from probe.core import collectives
from probe.core.class_stats import ClassStats
from probe.errors import UserError
from probe.losses.base import FitContext
from probe.losses.spec import FEATURE_SIZE, HELD_OUT_FREQUENCY, NeededStats

K, COUNTS = 3, [9, 5, 2]
EXACT = FitContext(exact=True, l2_chosen=True)
TRAINED = FitContext(exact=False, l2_chosen=True)


def make(name: str, **given):
    given = {"frequency": [0.5, 0.6, 0.7]} | given if name == "ef" else given
    return probe.losses.make(name, num_classes=K, class_counts=COUNTS, **given)


def batch():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(12) % K
    return torch.randn(12, K, generator=g), y, torch.randn(12, 4, generator=g) * (1 + y.unsqueeze(1))


@pytest.mark.parametrize("name", probe.losses.names())
def test_the_constructor_shows_the_defaults_of_the_table(name):
    spec = probe.losses.info(name)
    shown = {
        p.name: p.default
        for p in inspect.signature(spec.load("probe.losses")).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    if name == "bs":  # logit adjustment whose tau is not for users to choose
        assert shown.pop("tau") == 1.0
    assert shown == spec.defaults
    assert [type(shown[key]) for key in shown] == [type(spec.defaults[key]) for key in shown]


def test_margins_are_those_of_mr2_with_their_statistics_and_course():
    z, y, h = batch()
    for name in probe.losses.names():
        assert (make(name).margins() is not None) == name.startswith("mr2")
    loss = make("mr2")
    loss(z, y, h)
    loss(z, y, h)
    found = loss.margins()
    torch.testing.assert_close(found.gamma, loss.gamma)
    stats = ClassStats.from_features(h, y, K)
    torch.testing.assert_close(found.mean_norm2.double(), stats.mean_norm2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.spread2.double(), stats.spread2, rtol=1e-5, atol=1e-5)
    assert [step for step, _ in found.history] == [0, 1]
    assert found.history[-1][1] == pytest.approx(loss.gamma.tolist())
    assert make("mr2", stats=stats).margins().history == []


def test_remarks_say_what_a_reader_of_the_numbers_must_know():
    _, y, h = batch()
    mr2 = make("mr2", stats=ClassStats.from_features(h, y, K))
    (said,) = mr2.remarks(EXACT)
    assert "representation term has no effect" in said
    assert mr2.remarks(TRAINED) == []
    (said,) = make("dro").remarks(EXACT)
    assert "chosen with equal class weights" in said
    assert make("dro").remarks(FitContext(exact=True, l2_chosen=False)) == []
    assert make("dro").remarks(TRAINED) == []
    level = probe.losses.make("la", num_classes=K, class_counts=[4, 4, 4])
    assert level.remarks(TRAINED) == [level.remark]
    inside = FitContext(exact=False, l2_chosen=True, method="bcl")
    assert level.remarks(inside)[0].startswith("la, the loss inside bcl: every class is treated alike")
    assert make("erm").remarks(EXACT) == []


def test_a_row_says_which_statistics_and_measurements_go_with_its_parameters():
    def needed(name, **params):
        spec = probe.losses.info(name)
        return spec.needed_stats(spec.resolve(params))

    assert needed("la") is None
    assert needed("mr2") == NeededStats(p=2.0, scaled=False)
    assert needed("mr2", p=3.0) == NeededStats(p=3.0, scaled=False)
    assert needed("mr2", robust=True) == NeededStats(p=2.0, scaled=False, robust=True)
    assert needed("mr2-early") == NeededStats(p=2.0, scaled=False)
    assert needed("mr2-released") == NeededStats(p=5.0, scaled=False)
    assert needed("lgm") == NeededStats(p=2.0, scaled=True)
    ef, lgm = probe.losses.info("ef"), probe.losses.info("lgm")
    assert ef.unfilled(HELD_OUT_FREQUENCY, ef.resolve({})) == "frequency"
    assert ef.unfilled(HELD_OUT_FREQUENCY, ef.resolve({"frequency": [1, 2, 3]})) is None
    assert ef.unfilled(FEATURE_SIZE, ef.resolve({})) is None
    assert lgm.unfilled(FEATURE_SIZE, lgm.resolve({})) == "dim"
    assert lgm.unfilled(FEATURE_SIZE, lgm.resolve({"dim": 4})) is None


def test_a_mean_over_samples_is_the_mean_of_the_losses_it_gives():
    z, y, h = batch()
    for name in probe.losses.names():
        loss = make(name).eval()
        if not loss.sample_mean:
            continue
        first = z.tanh() if loss.spec.takes == "cosines" else z
        torch.manual_seed(0)  # eql draws a mask
        whole = loss(first, y, h)
        torch.manual_seed(0)
        torch.testing.assert_close(collectives.mean(*loss.losses(first, y)), whole.to(first))


def test_deferred_re_weighting_refuses_what_has_no_mean_over_samples():
    from probe import methods

    for name in ("dro", "lgm", "csr"):
        with pytest.raises(UserError, match=f"{name} has no mean over samples"):
            methods.make(f"drw({name})", {}, num_classes=K, class_counts=COUNTS)


def test_only_a_loss_that_owns_its_classifier_scores_features():
    _, _, h = batch()
    assert make("lgm", dim=4).scores(h).shape == (12, K)
    with pytest.raises(NotImplementedError, match="erm owns no classifier"):
        make("erm").scores(h)


def test_the_worst_class_is_what_dro_settles_and_its_weights_are_the_problem_from_then_on():
    assert {name for name in probe.losses.names() if make(name).worst_class() is not None} == {"dro"}
    loss = make("dro", sharpness=5.0, adjustment=2.0)
    worst = loss.worst_class()
    assert worst.sharpness == 5.0
    torch.testing.assert_close(worst.offset, 2.0 / torch.tensor(COUNTS).double().sqrt())
    worst.set_weights(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([2.0, 1.0, 1.0]))
    torch.testing.assert_close(loss.adjustment().weight, torch.ones(3))
