"""Probing by SGD solves the exact solver's problem, and reaches methods that have no exact solver."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.core.scaling import Scaling
from probe.errors import UserError
from probe.probing import exact as probing
from probe.probing.problem import ProbeProblem
from probe.recipe import MethodConfig, SolverConfig, grammar
from probe.recipe.train_settings import TrainConfig
from probe.solve import l2_grid
from probe.train import final_check, probe_sgd
from probe.train.sgd import ADAPTER_LR, SgdJob
from tests.support.training_world import D, blobs

NONE = np.array([], dtype=np.int64)


def problem(*, shift=0.0, size=1.0, scaling=None):
    X, y = blobs(400)
    return ProbeProblem(
        raw=size * X + shift,
        y=y,
        class_names=tuple("abcde"),
        scaling=scaling or Scaling(),
    )


@pytest.mark.parametrize(
    ("method", "slower"), [("erm", 1), ("bcl", 5), ("bcl(temperature=0.14)", 2.5), ("bcl(contrast=0)", 1)]
)
def test_an_adapter_learns_slower_under_a_steep_contrast(method, slower):
    choice = MethodConfig(**grammar.parse(method))
    job = SgdJob.of(problem(), choice, TrainConfig(head="adapter"), NONE, 0)
    assert job.training(0.0, None, show=False).lr == pytest.approx(ADAPTER_LR / slower)
    given = SgdJob.of(problem(), choice, TrainConfig(head="adapter", lr=0.3), NONE, 0)
    assert given.training(0.0, None, show=False).lr == 0.3


def fit(p, name="erm", l2=4.0, held=NONE, seed=0, **settings):
    options = {"epochs": 80, "batch_size": 64, **settings}
    return probe_sgd(
        p,
        MethodConfig(name=name),
        SolverConfig(name="sgd", l2=l2),
        held,
        settings=TrainConfig(**options),
        seed=seed,
        show=False,
    )


WHOLE = {
    "batch_size": 400,
    "epochs": 250,
    "lr": 3.0,
}  # full batches: no noise is left between the two solutions


@pytest.mark.parametrize("name", ["erm", "mr2", "la", "cb", "ldam-linear"])
def test_convex_methods_reach_the_exact_solution(name):
    p = problem()
    exact = probing.fit(p, MethodConfig(name=name), SolverConfig(l2=4.0), NONE).head.scores(p.raw)
    assert torch.allclose(fit(p, name, **WHOLE).head.scores(p.raw), exact, atol=0.02)


def test_batches_come_close_to_it():
    p = problem()
    exact = probing.fit(p, MethodConfig(name="mr2"), SolverConfig(l2=4.0), NONE).head.scores(p.raw)
    found = fit(p, "mr2").head.scores(p.raw)
    assert (exact.argmax(1) == found.argmax(1)).float().mean() > 0.98


@pytest.mark.parametrize(("shift", "size"), [(100.0, 1.0), (0.0, 1e-3), (-3.0, 50.0)])
def test_neither_the_place_nor_the_size_of_features_matters(shift, size):
    p = problem(shift=shift, size=size)
    exact = probing.fit(p, MethodConfig(name="erm"), SolverConfig(l2=4.0 * size**2), NONE).head.scores(p.raw)
    assert torch.allclose(fit(p, l2=4.0 * size**2, **WHOLE).head.scores(p.raw), exact, atol=0.02)


def test_the_head_remembers_the_scaling():
    X, _ = blobs(400)
    p = problem(scaling=Scaling(X.mean(0), X.std(0), unit_norm=True))
    exact = probing.fit(p, MethodConfig(name="erm"), SolverConfig(l2=4.0), NONE).head.scores(p.raw)
    assert torch.allclose(fit(p, **WHOLE).head.scores(p.raw), exact, atol=0.02)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ldam", "cosine"), ("arcface", "cosine"), ("focal", "linear"), ("lgm", "linear"), ("sam", "linear"),
     ("jtt", "linear"), ("drw", "linear"), ("csr", "linear"), ("fairdro", "linear")],
)  # fmt: skip
def test_methods_without_an_exact_solver_train_and_classify(name, kind):
    p = problem()
    result = fit(p, name, epochs=15, lr=0.05 if name == "lgm" else None)
    assert result.head.kind == kind
    assert (result.head.scores(p.raw).argmax(1).numpy() == p.y).mean() > 0.6


@pytest.mark.parametrize("head", ["cosine", "adapter"])
def test_other_heads_are_exported_as_they_were_trained(head):
    p = problem()
    first, again = (fit(p, "mr2", epochs=10, head=head) for _ in range(2))
    scores = first.head.scores(p.raw)
    assert torch.equal(scores, again.head.scores(p.raw))
    assert (scores.argmax(1).numpy() == p.y).mean() > 0.6


@pytest.mark.parametrize("name", ["arcface", "sphereface", "ldam", "cosface", "dbm"])
def test_a_common_direction_does_not_cost_cosine_heads_their_accuracy(name):
    p = problem(shift=20.0)
    exact = probing.fit(p, MethodConfig(name="erm"), SolverConfig(l2=4.0), NONE).head.scores(p.raw)
    right = (exact.argmax(1).numpy() == p.y).mean()
    found, raw = (fit(p, name, epochs=40, whiten=whiten).head.scores(p.raw) for whiten in (True, False))
    assert (found.argmax(1).numpy() == p.y).mean() > right - 0.05
    assert (raw.argmax(1).numpy() == p.y).mean() < right - 0.1


@pytest.mark.parametrize(
    ("name", "size"),
    [("range", 100.0), ("dro-lt", 100.0), ("dro-lt", 1e-2), ("focal", 100.0), ("arcface", 1e-2)],
)
def test_an_adapter_trains_on_features_of_any_size_and_place(name, size):
    p = problem(shift=20.0 * size, size=size)
    found = fit(p, name, l2=4.0 * size**2, epochs=25, head="adapter").head
    assert (found.scores(p.raw).argmax(1).numpy() == p.y).mean() > 0.8


@pytest.mark.parametrize("name", ["arcface", "dbm", "dbm-bcl"])
@pytest.mark.parametrize("whiten", [True, False])
def test_an_adapter_in_front_of_angles_begins_at_class_means_and_stays_above_them(name, whiten):
    p = problem(shift=0.5)
    start = fit(p, "dbm", epochs=1, lr=1e-9, head="adapter", whiten=whiten).head.scores(p.raw)
    found = fit(p, name, epochs=10, head="adapter", whiten=whiten).head.scores(p.raw)
    begun, ended = ((scores.argmax(1).numpy() == p.y).mean() for scores in (start, found))
    assert begun > 0.6  # chance is 0.2
    assert ended >= begun


def test_strength_and_epoch_are_chosen_on_held_rows(monkeypatch):
    monkeypatch.setattr(l2_grid, "GRID", (1.0, 10.0, 100.0, 1000.0))
    p = problem()
    held = np.arange(0, 400, 5)
    result = probe_sgd(
        p,
        MethodConfig(name="mr2"),
        SolverConfig(name="sgd"),
        held,
        settings=TrainConfig(epochs=4, keep="best", batch_size=64),
        show=False,
    )
    assert result.record["l2"] == probing.fit(p, MethodConfig(name="mr2"), SolverConfig(), held).record["l2"]
    assert 0 <= result.record["best_epoch"] < 4


def test_seeds_change_the_path_and_nothing_else_does():
    p = problem()
    a, b, c = (fit(p, epochs=2, seed=s).head.tensors["weight"] for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_memory_mapped_features_train_to_the_same_bits(tmp_path):
    from safetensors.torch import load_file, save_file

    X, y = blobs(400)
    save_file({"x": X}, tmp_path / "x.safetensors")
    names = tuple("abcde")
    mapped = ProbeProblem(raw=load_file(tmp_path / "x.safetensors")["x"], y=y, class_names=names)
    assert torch.equal(
        fit(mapped, epochs=2).head.tensors["weight"], fit(problem(), epochs=2).head.tensors["weight"]
    )


@pytest.mark.parametrize("name", ["lgm", "jtt(lgm)"])
def test_gaussian_classes_start_at_the_means_of_scaled_features_and_no_strength_pulls_them_away(name):
    plain = problem()
    scaled = problem(shift=3.0, size=0.2, scaling=Scaling(*torch.tensor([[3.0], [0.2]]).expand(2, D)))
    method, solver = MethodConfig(**grammar.parse(name)), SolverConfig(name="sgd")
    ends = [
        probe_sgd(p, method, solver, NONE, settings=TrainConfig(epochs=9), show=False)
        for p in (plain, scaled)
    ]
    assert all("l2" not in end.record for end in ends)
    guesses = [end.head.scores(p.raw).argmax(1) for end, p in zip(ends, (plain, scaled), strict=True)]
    assert float((guesses[0] == guesses[1]).float().mean()) > 0.99
    assert (guesses[0].numpy() == plain.y).mean() > 0.8


def test_a_given_decay_is_the_strength_that_is_recorded():
    """And none is searched for beside it: there are no held-out rows here."""
    p = problem()
    found = fit(p, l2=None, weight_decay=0.02, **WHOLE)
    exact = probing.fit(p, MethodConfig(name="erm"), SolverConfig(l2=found.record["l2"]), NONE).head.tensors[
        "weight"
    ]
    assert float((found.head.tensors["weight"] - exact).norm()) < 0.02 * float(exact.norm())


@pytest.mark.parametrize("name", ["ef", "sam(ef)"])
def test_effective_frequencies_are_found_for_a_trained_probe_too(name):
    p, method = problem(), MethodConfig(**grammar.parse(name))
    exact = probing.with_frequency(p, MethodConfig(name="ef"), SolverConfig(l2=4.0), NONE)
    found = probe_sgd(
        p, method, SolverConfig(name="sgd", l2=4.0), NONE, settings=TrainConfig(epochs=40), show=False
    )
    assert torch.allclose(
        found.loss.adjustment().shift.double(),
        p.loss(exact).adjustment().shift.double(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_what_cannot_work_is_refused_in_one_line():
    p = problem()
    with pytest.raises(UserError, match=r"ldam works on cosines.*train.head=cosine"):
        fit(p, "ldam", head="linear")
    with pytest.raises(UserError, match="augmentation changes images"):
        fit(p, augment={"policy": "randaugment"})
    with pytest.raises(UserError, match="smaller than one class pair"):
        fit(p, sampler="pairs", batch_size=1)
    with pytest.raises(UserError, match="nothing is left to train"):
        fit(p, "erm", head="etf")


def test_a_checkpoint_of_other_data_is_refused_under_the_same_recipe(tmp_path):
    often = TrainConfig(epochs=1, batch_size=64, checkpoint_minutes=1e-9)

    def train(key):
        known, solver = replace(problem(), key=key), SolverConfig(name="sgd", l2=4.0)
        probe_sgd(known, MethodConfig(name="erm"), solver, NONE, settings=often, folder=tmp_path, show=False)

    train("one backbone on one data set")
    with pytest.raises(UserError, match="belongs to another recipe"):
        train("another")


def test_a_diverging_probe_names_the_images_of_the_batch():
    named = replace(problem(), ids=[f"train/cat/{i}.jpg" for i in range(400)])
    with pytest.raises(UserError, match=r"step \d+.*train/cat/\d+\.jpg.*Try a smaller train.lr"):
        fit(named, lr=1e38)


def few(n=64):
    X, y = blobs(n)
    return ProbeProblem(raw=X, y=y, class_names=tuple("abcde"))


@pytest.mark.parametrize("l2", [1e2, 1e4, 1e6, 1e12])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.0}, {"momentum": 0.99, "epochs": 300}, {"ema": 0.9, "epochs": 100}],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_a_penalty_of_any_size_ends_at_the_exact_solution(l2, settings):
    p = few()
    exact = probing.fit(p, MethodConfig(name="la"), SolverConfig(l2=l2), NONE).head.tensors["weight"]
    found = fit(p, "la", l2=l2, **{"epochs": 60, "batch_size": 256, **settings})
    assert float((found.head.tensors["weight"] - exact).norm()) < 0.02 * float(exact.norm()) + 1e-9
    assert found.record["gap"] < 1e-3


@pytest.mark.parametrize(
    ("name", "head"), [("ldam", "auto"), ("arcface", "auto"), ("mr2", "cosine"), ("mr2", "adapter")]
)
def test_no_penalty_blows_another_head_up(name, head):
    p = few()
    found = fit(p, name, l2=1e6, epochs=60, batch_size=256, head=head)
    assert all(t.abs().max() < 100 for t in found.head.tensors.values())
    if head != "adapter":  # the scores of a cosine head have no size, so no penalty acts on it
        assert "l2" not in found.record
        assert (found.head.scores(p.raw).argmax(1).numpy() == p.y).mean() > 0.9


@pytest.mark.parametrize("name", ["erm", "mr2", "la", "cb", "ldam-linear"])
def test_the_gap_to_the_optimum_is_certified_for_convex_methods(name):
    """Never below the true excess, and close to it."""
    p = problem()
    best = probing.fit(p, MethodConfig(name=name), SolverConfig(l2=4.0, tol=1e-9), NONE)
    rows, y = best.loss.adjustment(), torch.from_numpy(p.y)
    for epochs in (2, 10, 60):
        found = fit(p, name, epochs=epochs)
        weight, bias = (found.head.tensors[n].double() for n in ("weight", "bias"))
        losses, v = rows.losses(p.raw.double() @ weight.T + bias, y)
        here = float((losses if v is None else v * losses).sum() + 2 * weight.square().sum())
        excess = here / best.record["objective"] - 1
        assert excess <= found.record["gap"] + 1e-9
        assert found.record["gap"] <= excess + 1e-3
        assert (final_check.remark([found.record["gap"]]) is None) is (found.record["gap"] <= 0.01)
    assert found.record["gap"] < 0.01


@pytest.mark.parametrize("name", ["focal", "ldam", "sam", "jtt", "drw", "dro"])
def test_what_is_not_that_convex_problem_has_no_gap(name):
    assert "gap" not in fit(problem(), name, epochs=5).record


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("erm", {"lr": 1e4}),
        ("focal", {"lr": 1e4}),
        ("mr2", {"lr": 1e4, "momentum": 0.0}),
        ("jtt", {"lr": 1e4}),
    ],
)
def test_a_head_worse_than_its_start_is_refused_with_what_to_try(name, settings):
    with pytest.raises(UserError, match=r"made the head worse: its objective is .* Try a smaller") as caught:
        fit(few(), name, epochs=8, batch_size=16, **settings)
    assert "\n" not in str(caught.value)


def test_robust_weights_move_while_a_head_is_trained():
    """Their rows are those of the moment: frozen, they would make another method of it."""
    found = fit(problem(), "dro", epochs=5)
    assert float(found.loss.weights.max() - found.loss.weights.min()) > 0.01


def test_images_that_choose_the_epoch_teach_nothing_else():
    p, held = problem(), np.arange(0, 400, 5)
    y = p.y.copy()
    y[held] = (y[held] + 1) % 5  # other labels of what is held out
    one, other = (fit(q, "ef", held=held, epochs=1, keep="best").head for q in (p, replace(p, y=y)))
    assert torch.equal(one.tensors["weight"], other.tensors["weight"])
