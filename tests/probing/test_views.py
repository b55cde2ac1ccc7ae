"""Several views of each image: an image counts once, is predicted once, and stays in one fold."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe import data
from probe.core.scaling import Scaling
from probe.evaluation import groups
from probe.features import Matrix
from probe.heads.fitted import FittedHead
from probe.probing import crossfit, exact
from probe.probing.problem import ProbeProblem
from probe.probing.select_l2 import LogisticPath, select_l2
from probe.probing.settings import ExactSolver, LossChoice
from probe.recipe import MethodConfig, SolverConfig
from probe.recipe.train_settings import TrainConfig
from probe.train import probe_sgd

NONE = np.array([], dtype=np.int64)
METHODS = ["erm", "mr2", "la", "cb", "ef", "ldam-linear", "dro"]


def blobs(n=120, dim=6, classes=4, seed=0):
    """Unbalanced, overlapping classes."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.45, n) - 1, classes - 1)
    X = rng.normal(size=(classes, dim))[y] * 0.8 + rng.normal(size=(n, dim)) * rng.uniform(0.7, 1.5, (n, 1))
    return torch.tensor(X, dtype=torch.float32), y.astype(np.int64)


def problem(views=1, on_disk=False, **more):
    X, y = blobs()
    raw = X.repeat(views, 1)
    names = tuple("abcd")
    return ProbeProblem(
        Matrix([raw[:100], raw[100:]], raw.shape[1]) if on_disk else raw,
        np.tile(y, views),
        names,
        views=views,
        **more,
    )


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_identical_views_give_the_probe_of_one_view(name, on_disk):
    solver, one, three = ExactSolver(tol=1e-9), problem(), problem(3, on_disk)
    holdout = data.stratified_holdout(one.labels, 0.25, 0)[1]
    assert np.array_equal(one.labels, three.labels)
    a, b = (exact.fit(p, LossChoice(name), solver, holdout) for p in (one, three))
    assert a.record["l2"] == b.record["l2"]
    assert a.record["objective"] == pytest.approx(b.record["objective"], rel=1e-5)
    torch.testing.assert_close(a.head.scores(one.raw), b.head.scores(one.raw), rtol=0, atol=5e-3)
    assert a.loss is not None
    for attribute in ("scale", "shift", "weight"):  # margins, priors, effective numbers and frequencies
        mine, other = (getattr(fit.loss.adjustment(), attribute) for fit in (a, b))
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("solver", [ExactSolver("ridge"), ExactSolver("knn", k=5)])
def test_so_do_the_solvers_without_a_loss(solver):
    one, two = problem(), problem(2)
    holdout = data.stratified_holdout(one.labels, 0.25, 0)[1]
    a, b = (exact.fit(p, LossChoice("erm"), solver, holdout) for p in (one, two))
    assert a.record.get("l2") == b.record.get("l2")
    torch.testing.assert_close(
        a.head.scores(one.raw).softmax(1), b.head.scores(one.raw).softmax(1), rtol=1e-4, atol=1e-5
    )


def test_and_sgd_with_the_same_penalty_and_gap():
    one, two = problem(), problem(2)
    heads, records = [], []
    for p in (one, two):
        settings = TrainConfig(epochs=150, batch_size=len(p.y), lr=1.0)
        fit = probe_sgd(
            p, MethodConfig(name="cb"), SolverConfig(name="sgd", l2=4.0), NONE, settings=settings, show=False
        )
        heads.append(fit.head.scores(one.raw))
        records.append(fit.record)
    torch.testing.assert_close(*heads, rtol=0, atol=1e-3)
    assert records[0]["gap"] == pytest.approx(records[1]["gap"], abs=1e-4)
    assert records[0]["l2"] == records[1]["l2"] == 4.0


def test_statistics_are_of_all_rows_and_counts_are_of_images():
    X, y = blobs()
    moved = ProbeProblem(torch.cat([X, 3 * X]), np.tile(y, 2), tuple("abcd"), views=2)
    images = np.arange(0, 120, 2)
    loss = moved.loss(LossChoice("mr2"), moved.rows(images))
    rows = torch.cat([X, 3 * X])[np.concatenate([images, images + 120])]
    labels = np.concatenate([y[images], y[images]])
    margins = loss.margins()
    for k in range(4):
        own = rows[labels == k].double()
        assert float(margins.mean_norm2[k]) == pytest.approx(float(own.mean(0).square().sum()), rel=1e-5)
    shift = moved.loss(LossChoice("la"), moved.rows(images)).adjustment().shift
    prior = np.bincount(y[images], minlength=4) / len(images)
    assert shift.double().softmax(0).tolist() == pytest.approx(prior.tolist(), abs=1e-6)


def test_logits_are_the_mean_over_the_views_that_predict():
    X, y = blobs()
    views = [X, X + 0.3, X * 0.9]
    learnt = ProbeProblem(torch.cat(views[:2]), np.tile(y, 2), tuple("abcd"), views=2)
    head = exact.fit(learnt, LossChoice("erm"), ExactSolver(l2=1.0), NONE).head

    class Linear:
        def logits(self, rows):
            return head.scores(rows if isinstance(rows, torch.Tensor) else rows.tensor())

    some = np.array([7, 3, 90])
    for tested, over in ((None, views[:2]), (X, views[:1]), (torch.cat(views), views)):
        asked = replace(learnt, tested=tested)
        mean = torch.stack([head.scores(view[some]) for view in over]).mean(0)
        torch.testing.assert_close(asked.logits(Linear(), some), mean)
        torch.testing.assert_close(asked.only(some).logits(Linear(), np.arange(3)), mean)
        torch.testing.assert_close(head.scores_over([view[some] for view in over]), mean)


def test_votes_of_neighbours_are_averaged_as_shares():
    bank, labels = torch.eye(3), torch.arange(3)
    settings = {"num_classes": 3, "k": 1, "weighted": False}
    head = FittedHead("knn", {"bank": bank, "labels": labels}, settings)
    scores = head.scores_over([torch.tensor([[1.0, 0, 0]]), torch.tensor([[0, 1.0, 0]])])
    assert scores[0].exp().tolist() == pytest.approx([0.5, 0.5, 0])
    assert math.isinf(float(scores[0, 2]))


@pytest.fixture(scope="module")
def noise():
    """Labels that no image tells: whoever does better than chance has seen the image itself."""
    rng = np.random.default_rng(1)
    n, dim, classes = 200, 300, 4
    X = torch.tensor(rng.normal(size=(n, dim)), dtype=torch.float32)
    y = rng.integers(0, classes, n)
    return ProbeProblem(torch.cat([X, X + 0.01]), np.tile(y, 2), tuple("abcd"), views=2)


def test_views_of_an_image_share_a_fold(noise):
    predict = crossfit.held_out_probabilities(noise, l2=0.1)
    accuracy, _ = groups.crossfit(noise.labels, 4, predict)
    assert accuracy.mean() < 0.45


def test_and_a_holdout(noise):
    holdout = data.stratified_holdout(noise.labels, 0.2, 0)[1]
    path = LogisticPath(noise, lambda rows: noise.loss(LossChoice("erm"), rows))
    table = select_l2(noise, ExactSolver(), holdout, path)["validation"]
    assert max(score for _, score in table) < 0.55
    method, solver = MethodConfig(name="erm"), SolverConfig(name="sgd", l2=1.0)
    settings = TrainConfig(epochs=5, keep="best")
    fit = probe_sgd(noise, method, solver, holdout, settings=settings, show=False)
    guess = fit.head.scores_over([noise.raw[holdout], noise.raw[holdout + 200]]).argmax(1).numpy()
    assert (guess == noise.labels[holdout]).mean() < 0.55


def test_evaluation_crops_are_the_first_rows_however_they_are_kept():
    for on_disk in (False, True):
        p = problem(2, on_disk, scaling=Scaling(torch.zeros(6), torch.full((6,), 2.0)))
        assert torch.allclose(p.crops[:], blobs()[0] / 2)
