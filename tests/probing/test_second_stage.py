"""Second stages: each is the method it is named after, and chooses by images its head has not seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from probe.core.scaling import NEUTRAL
from probe.errors import UserError
from probe.evaluation.judging import Objective
from probe.heads import fitted
from probe.heads.fitted import FittedHead, OnScaled
from probe.losses import functional
from probe.probing import exact, second_stage
from probe.probing.post_hoc import TAUS
from probe.probing.problem import ProbeProblem
from probe.probing.selection import Selector
from probe.probing.settings import ExactSolver, LossChoice
from probe.probing.stage import FirstHead, StageSettings

COUNTS = (60, 30, 12, 6)
SOLVER = ExactSolver(l2=0.7, tol=1e-12)
NONE = np.array([], dtype=np.int64)
PARAMS = {
    "crt": {},
    "jtt": {"up": 5, "errors": "training"},
    "lws": {"pull": 0.01},
    "tau-norm": {"tau": None, "centre": True},
    "la-posthoc": {"tau": 1.0},
    "temperature": {"classes": "equal"},
}


def problem(counts=COUNTS, seed: int = 0) -> ProbeProblem:
    g = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    centres = 1.2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(9))
    h = 3 + centres[y] + torch.randn(len(y), 6, generator=g)
    return ProbeProblem(h.double(), y.numpy(), ("a", "b", "c", "d"))


def stage(name: str, first: FirstHead | None = None, loss: str = "erm", **params) -> StageSettings:
    return StageSettings(name, {**PARAMS[name], **params}, LossChoice(loss), first)


def holdout(p: ProbeProblem) -> np.ndarray:
    return np.arange(0, p.images, 4)


def scores(p: ProbeProblem, fit) -> torch.Tensor:
    return p.logits(OnScaled(fit.head), np.arange(p.images)).double()


def test_crt_is_logistic_regression_with_balanced_classes_and_plain_on_balanced_data():
    p = problem()
    made = second_stage.fit(p, stage("crt"), SOLVER, NONE)
    other = LogisticRegression(C=1 / 0.7, class_weight="balanced", tol=1e-10, max_iter=10_000)
    other.fit(p.raw.numpy(), p.y)
    expected = other.predict_proba(p.raw.numpy())
    assert np.allclose(scores(p, made).softmax(1).numpy(), expected, atol=1e-4)
    even = problem((20, 20, 20, 20))
    plain = exact.fit(even, LossChoice("erm"), SOLVER, NONE)
    assert torch.allclose(
        scores(even, second_stage.fit(even, stage("crt"), SOLVER, NONE)), scores(even, plain), atol=1e-4
    )


@pytest.mark.parametrize("errors", ["training", "crossfit"])
def test_jtt_is_the_solution_of_rows_that_are_physically_repeated(errors):
    p = problem()
    made = second_stage.fit(p, stage("jtt", up=3, errors=errors), SOLVER, NONE)
    plain = exact.fit(p, LossChoice("erm"), SOLVER, NONE)
    wrong = scores(p, plain).argmax(1).numpy() != p.y
    if errors == "training":
        assert made.record["first"]["errors"] == wrong.sum() > 0
        rows = np.repeat(np.arange(p.images), np.where(wrong, 3, 1))
        repeated = ProbeProblem(p.raw[rows], p.y[rows], p.class_names)
        again = exact.fit(repeated, LossChoice("erm"), SOLVER, NONE)
        assert torch.allclose(scores(p, made), scores(p, again), atol=1e-3)
    else:
        assert made.record["first"]["errors"] > wrong.sum()  # held-out errors are more
    once = second_stage.fit(p, stage("jtt", up=1, errors=errors), SOLVER, NONE)
    assert torch.allclose(scores(p, once), scores(p, plain), atol=1e-4)


def test_jtt_without_an_error_says_that_it_is_plain():
    p = problem()
    p = ProbeProblem(p.raw + 40 * torch.eye(4, 6).double()[p.y], p.y, p.class_names)
    made = second_stage.fit(p, stage("jtt"), SOLVER, NONE)
    assert made.record["first"]["errors"] == 0
    assert "use errors=crossfit" in made.remarks[0]


def test_logit_adjustment_after_the_fact_is_balanced_softmax_where_the_bias_is_free():
    p = problem()
    after = second_stage.fit(p, stage("la-posthoc"), ExactSolver(l2=0.7, tol=1e-12), NONE)
    trained = exact.fit(p, LossChoice("bs"), ExactSolver(l2=0.7, tol=1e-12), NONE)
    assert torch.allclose(scores(p, after).softmax(1), scores(p, trained).softmax(1), atol=1e-5)


def test_tau_norm_divides_the_weights_by_a_power_of_their_lengths_and_drops_the_bias():
    p = problem()
    plain = exact.fit(p, LossChoice("erm"), SOLVER, NONE).head.tensors["weight"]
    for tau in (0.0, 0.7, 1.0):
        made = second_stage.fit(p, stage("tau-norm", tau=tau, centre=False), SOLVER, NONE).head
        torch.testing.assert_close(made.tensors["weight"], functional.tau_norm(plain, tau=tau))
        assert not made.tensors["bias"].any()
        centred = second_stage.fit(p, stage("tau-norm", tau=tau), SOLVER, NONE).head
        means = torch.stack([p.raw[p.y == k].mean(0) for k in range(4)])
        at_mean = OnScaled(centred).logits(means.mean(0, keepdim=True))
        assert float(at_mean.abs().max()) < 1e-4


def test_tau_is_chosen_by_a_head_that_has_not_seen_the_holdout():
    p, held = problem(), holdout(problem())
    made = second_stage.fit(p, stage("tau-norm"), SOLVER, held)
    tried = dict(map(tuple, made.record["tau_validation"]))
    assert list(tried) == list(TAUS)
    kept = p.only(np.setdiff1d(np.arange(p.images), held))
    for tau in (0.0, 1.0, 2.0):
        alone = second_stage.fit(kept, stage("tau-norm", tau=tau), SOLVER, NONE)
        right = p.logits(OnScaled(alone.head), held).argmax(1).numpy() == p.y[held]
        assert right.mean() == pytest.approx(tried[tau])
    assert tried[made.record["tau"]] == max(tried.values())


def test_lws_multiplies_each_class_s_score_by_its_scale():
    p = problem()
    made = second_stage.fit(p, stage("lws"), SOLVER, NONE)
    plain = exact.fit(p, LossChoice("erm"), SOLVER, NONE)
    scales = torch.tensor(made.record["scales"])
    assert float((scales - 1).abs().max()) > 0.01
    torch.testing.assert_close(
        scores(p, made), functional.lws(scores(p, plain), scales.double()), atol=1e-3, rtol=1e-3
    )


def test_temperature_changes_probabilities_and_no_prediction():
    p = problem((28, 28, 28, 28))
    held = holdout(p)
    strong = ExactSolver(l2=100.0)  # far too timid, so the temperature is below 1
    made = second_stage.fit(p, stage("temperature"), strong, held)
    assert made.record["temperature"] < 0.9
    assert made.record["held_out"]["after"]["nll"] < made.record["held_out"]["before"]["nll"]
    before = p.logits(OnScaled(made.first), np.arange(p.images)).double()
    assert torch.equal(before.argmax(1), scores(p, made).argmax(1))
    assert torch.allclose(before / made.record["temperature"], scores(p, made), atol=1e-4)


def test_temperature_counts_classes_equally_unless_they_are_to_be_sized():
    p, held = problem(), holdout(problem())
    equal, sized = (
        second_stage.fit(p, stage("temperature", classes=way), SOLVER, held).record["temperature"]
        for way in ("equal", "sized")
    )
    kept = np.setdiff1d(np.arange(p.images), held)
    part = ProbeProblem(p.raw[kept], p.y[kept], p.class_names)
    head = exact.fit(part, LossChoice("erm"), SOLVER, NONE).head
    z, y = head.scores(p.raw[held]).double(), torch.from_numpy(p.y[held])
    inverse = {t: torch.tensor(1 / t, dtype=torch.float64, requires_grad=True) for t in (equal, sized)}
    classes = torch.stack([F.cross_entropy(inverse[equal] * z[y == k], y[y == k]) for k in range(4)]).mean()
    images = F.cross_entropy(inverse[sized] * z, y)
    for value, t in ((classes, equal), (images, sized)):
        assert torch.autograd.grad(value, inverse[t])[0].abs() < 1e-5
    assert equal != pytest.approx(sized, rel=0.003)


def test_a_stored_head_is_what_a_post_hoc_stage_starts_from_whatever_its_kind():
    p, held = problem(), holdout(problem())
    cosine = FittedHead("cosine", {"weight": torch.randn(4, 6).double()}, {"scale": 8.0})
    first = FirstHead("runs/a", cosine, saw_holdout=False)
    plain = cosine.scores(p.raw)
    for name in ("lws", "la-posthoc", "temperature"):
        made = second_stage.fit(p, stage(name, first), SOLVER, held)
        assert made.first is cosine
        ratio = (scores(p, made) - scores(p, made)[:1]) / (plain - plain[:1])
        assert torch.allclose(
            ratio[1:], ratio[1:2].expand_as(ratio[1:]), atol=1e-6
        )  # one factor for each class
        assert torch.equal(made.head.tensors["weight"], cosine.tensors["weight"])
    with pytest.raises(UserError, match="linear head's weights; this head is cosine"):
        second_stage.fit(p, stage("tau-norm", first, tau=1.0), SOLVER, held)


def test_a_changed_head_is_saved_and_changed_again(tmp_path):
    features = torch.randn(5, 6)
    for kind, settings in (("linear", {}), ("cosine", {"scale": 8.0})):
        tensors = {"weight": torch.randn(4, 6), "bias": torch.randn(4)}
        head = FittedHead(kind, tensors if kind == "linear" else {"weight": tensors["weight"]}, settings)
        twice = head.adjusted(torch.tensor([1.0, 2, 3, 4]), 0.5).adjusted(2.0, torch.tensor([0.0, 1, 2, 3]))
        fitted.save(twice, tmp_path, {})
        expected = 2 * (torch.tensor([1.0, 2, 3, 4]) * head.scores(features) + 0.5) + torch.arange(4)
        torch.testing.assert_close(fitted.load(tmp_path)[0].scores(features), expected)
        assert fitted.load(tmp_path)[0].scaling == NEUTRAL


def test_a_range_is_chosen_by_the_objective_on_the_holdout():
    p, held = problem(), holdout(problem())
    points = [stage("la-posthoc", tau=tau) for tau in (0.0, 1.0, 8.0)]
    selector = Selector(p, held, Objective("worst-tenth"))
    made = second_stage.fit_selected(p, points, SOLVER, selector)
    tried = made.record["select"]["tried"]
    assert [row["parameters"]["tau"] for row in tried] == [0.0, 1.0, 8.0]
    best = max(row["worst_tenth"] for row in tried)
    chosen = made.record["select"]["parameters"]["tau"]
    assert next(row for row in tried if row["parameters"]["tau"] == chosen)["worst_tenth"] == best


def test_views_of_an_image_share_its_weight():
    p = problem()
    twice = ProbeProblem(torch.cat([p.raw, p.raw]), np.tile(p.y, 2), p.class_names, views=2)
    for name in ("crt", "lws", "la-posthoc"):
        one, two = (second_stage.fit(q, stage(name), SOLVER, NONE) for q in (p, twice))
        torch.testing.assert_close(
            one.head.tensors["weight"], two.head.tensors["weight"], atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize(
    ("settings", "solver", "says"),
    [
        (stage("crt"), ExactSolver("ridge"), "crt is solved on frozen features: use solver lbfgs"),
        (stage("crt", loss="focal"), SOLVER, "focal has no exact solver"),
        (
            stage("temperature", FirstHead("a", None, True)),
            SOLVER,
            "none is left to choose the temperature by",
        ),
        (
            stage("tau-norm", FirstHead("a", None, True)),
            SOLVER,
            "give method.tau, or train it with train.keep",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(settings, solver, says):
    with pytest.raises(UserError, match=says) as caught:
        second_stage.check(settings, solver)
    assert "\n" not in str(caught.value)


def test_nothing_to_choose_by_is_said():
    with pytest.raises(UserError, match="no image is left to choose the temperature by"):
        second_stage.fit(problem(), stage("temperature"), SOLVER, NONE)
