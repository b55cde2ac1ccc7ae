"""Rounds of levers: what is tried, in which order, what is kept of it, and how it is told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probe import recipe as recipes
from probe.heads.fitted import FittedHead
from probe.runs import lever_shares, levers
from probe.runs.judgement import Judgement
from probe.runs.lever_costs import Costs
from probe.runs.lever_search import Memory, Search
from tests.support.lever_world import FIRST, SECOND, MadeUpImages, NoCosts, ToldImages

THIRD = "cifar-preact20"
BOTH = "with all further backbones"


class Priced(NoCosts):
    """Every frozen probe can be tried, at the price that `price(recipe)` says."""

    def __init__(self, price=lambda recipe: 0.0):
        self.price = price

    def judging(self, recipe, plain):
        return float("inf") if recipe.trains else self.price(recipe)


def rounds(gain, work, *, price=lambda recipe: 0.0, further=(SECOND, THIRD)):
    """The search where `gain(recipe)` is what hard classes have gained over the plain probe, in points."""
    images = ToldImages(gain)
    costs = Priced(price)
    search = Search(images, Memory(work, "told"), budget=0.5, seconds=1e9, backbones=further, costs=costs)
    search.run()
    return search


def parts(recipe):
    return {part.name for part in recipe.backbone.also}


def outcome(search):
    return {step.name: "kept" if step.kept else step.why for step in search.steps if step.gain is not None}


def test_of_a_round_the_best_is_kept_and_backbones_are_tried_together_too(tmp_path):
    found = {frozenset(): 0, frozenset([SECOND]): 10, frozenset([THIRD]): 8, frozenset([SECOND, THIRD]): 11}
    search = rounds(lambda recipe: found[frozenset(parts(recipe))], tmp_path)
    said = outcome(search)
    assert said[BOTH] == "kept"
    assert said[f"with {SECOND}"] == said[f"with {THIRD}"] == "less than the best"
    assert [step.name for step in search.steps if step.kept] == [BOTH]
    assert parts(search.best) == {SECOND, THIRD}
    total = next(step for step in search.steps if step.kept)
    assert total.over_plain["hard"]["mean"] == pytest.approx(total.gain["hard"]["mean"])


def test_the_same_backbones_in_another_order_are_judged_once(tmp_path):
    """Kept one after the other, what both give together is known from the first round."""
    found = {frozenset(): 0, frozenset([SECOND]): 10, frozenset([THIRD]): 12, frozenset([SECOND, THIRD]): 11}
    search = rounds(lambda recipe: found[frozenset(parts(recipe))], tmp_path)
    asked = [recipe.digest for recipe in search.images.asked]
    assert len(set(asked)) == len(asked)
    assert parts(search.best) == {THIRD}
    assert outcome(search)[f"with {SECOND}, again"] == "no gain"


def test_levers_of_the_loss_are_tried_again_on_new_features_and_may_be_only_likely(tmp_path):
    """+1.5 points whose 95 % interval holds 0: not enough to leave the plain probe, enough on top of more."""

    def gain(recipe):
        return 20 * (SECOND in parts(recipe)) + 1.5 * (recipe.method.name == "mr2")

    search = rounds(gain, tmp_path, further=(SECOND,))
    said = outcome(search)
    assert said["margins"] == "no clear gain"
    assert said[f"with {SECOND}"] == "kept"
    assert said["margins, again"] == "kept"
    (likely,) = (step for step in search.steps if step.name == "margins, again")
    assert not likely.gain["hard"]["clear"]
    assert likely.over_plain["hard"]["clear"]


def test_a_round_goes_from_cheap_to_dear(tmp_path):
    def price(recipe):
        return {"flip": 3.0, 2: 5.0}.get(recipe.features.views, 1.0) + 3 * len(parts(recipe))

    search = rounds(lambda recipe: 0.0, tmp_path, price=price)
    names = [step.name for step in search.steps if step.kind in levers.FEATURES]
    sizes = [name for name in names if name.startswith("input")]
    assert [name for name in names if name not in sizes] == [
        "mirror images", f"with {SECOND}", f"with {THIRD}", "2 more crops", BOTH
    ]  # fmt: skip
    assert names[:2] == sizes


def test_what_is_solved_for_many_heads_is_expected_to_take_longer():
    costs = Costs(SimpleNamespace(fold=np.zeros(1000)))
    plain = recipes.build({"backbone": "effnet-lite0", "method": "erm"})
    dearer = [
        {"method": "mr2(power=[0.33, 1])"},
        {"features": {"views": "flip"}},
        {"backbone": "effnet-lite0+effnet-lite1"},
        {"method": "dro"},
    ]
    seconds = [costs.solving(recipes.build({"method": "erm", **more}), 10.0) for more in dearer]
    assert costs.solving(plain, 10.0) == 10.0
    assert seconds == sorted(seconds)
    assert seconds[0] > 10


def test_a_longer_step_of_the_input_is_tried_only_where_the_shorter_one_gains(tmp_path):
    idle = rounds(lambda recipe: 0.0, tmp_path / "idle")
    assert {step.name: step.why for step in idle.steps}["input x 1.3"].startswith("skipped")

    def gain(recipe):
        return {None: 0.0, 64: 8.0}.get(recipe.backbone.image_size, 12.0)

    gaining = rounds(gain, tmp_path / "gaining")
    sizes = {recipe.backbone.image_size for recipe in gaining.images.asked} - {None}
    assert len(sizes) == len(levers.LARGER)


def test_a_larger_input_that_was_kept_is_only_followed_by_larger_ones(tmp_path):
    def gain(recipe):
        return {None: 0.0, 64: 8.0, 96: 12.0}[recipe.backbone.image_size] + 20 * (SECOND in parts(recipe))

    search = rounds(gain, tmp_path, further=(SECOND,))
    names = [step.name for step in search.steps if step.kept]
    assert names == [f"with {SECOND}", "input x 1.3, again"]
    later = search.steps[[step.name for step in search.steps].index(names[-1]) + 1 :]
    assert not [step.name for step in later if step.kind == "size"]
    assert [part.image_size for part in search.best.backbone.parts] == [96, 96]


def test_a_shorter_step_enlarges_only_the_parts_that_came_later():
    plain = recipes.build({"backbone": "effnet-lite0"})
    found = levers.levers(levers.Situation(plain, np.array([9, 9, 9]), 0.5, ("effnet-lite1",)))
    lever = {each.name: each for each in found}
    large = lever["input x 1.3"].applied(plain)
    assert lever["input x 1.15"].applied(large) is None
    assert lever["input x 1.3"].applied(large) is None
    both = lever["with effnet-lite1"].applied(large)
    shorter = lever["input x 1.15"].applied(both)
    assert [part.image_size for part in shorter.backbone.parts] == [288, 288]
    assert [part.image_size for part in lever["input x 1.3"].applied(both).backbone.parts] == [288, 320]


def test_a_tap_that_was_kept_is_not_added_again():
    plain = recipes.build({"backbone": "clip-rn50"})
    found = levers.levers(levers.Situation(plain, np.array([9, 9, 9]), 0.5))
    (tap,) = (lever for lever in found if lever.kind == "taps")
    with_tap = tap.applied(plain)
    assert len(with_tap.backbone.parts) == 2
    assert tap.applied(with_tap) is None


def test_levers_that_come_to_the_same_recipe_are_judged_and_listed_once(tmp_path):
    """Where one of two further backbones was kept, the other and both together are the same."""
    found = {frozenset(): 0, frozenset([SECOND]): 10, frozenset([THIRD]): 12, frozenset([SECOND, THIRD]): 11}
    search = rounds(lambda recipe: found[frozenset(parts(recipe))], tmp_path)
    judged = [step.name for step in search.steps if step.kind == "backbones"]
    assert judged == [f"with {SECOND}", f"with {THIRD}", BOTH, f"with {SECOND}, again"]
    tried = [(step.recipe.digest, step.name.endswith("again")) for step in search.steps if step.recipe]
    assert len(set(tried)) == len(tried)


def test_sizes_are_steps_from_the_backbones_own_for_every_part():
    assert [levers.larger("effnet-lite0", step) for step in levers.LARGER] == [256, 288]
    assert [levers.larger("effnet-lite2", step) for step in levers.LARGER] == [288, 352]
    assert levers.larger("dinov2-vit-s14", 1.15) % 14 == 0
    plain = recipes.build({"backbone": "effnet-lite0+effnet-lite1"})
    found = levers.levers(levers.Situation(plain, np.array([9, 9, 9]), 0.5))
    small, large = (lever for lever in found if lever.kind == "size")
    sizes = [part.image_size for part in large.applied(small.applied(plain)).backbone.parts]
    assert sizes == [288, 320]


@pytest.mark.parametrize(("side", "steps"), [(96, [128, 160]), (224, [256, 288]), (480, [544, 640])])
def test_steps_of_the_input_are_never_the_same_size(side, steps):
    assert [levers.larger("effnet-lite0", step, side) for step in levers.LARGER] == steps


def test_a_training_without_gain_on_the_folds_so_far_is_not_continued(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 30)
    features = rng.normal(size=(90, 3)) + 4 * np.eye(3)[labels]
    plain = recipes.build({"backbone": FIRST, "method": "erm"})
    images = MadeUpImages(labels, {FIRST: features}, plain)
    before = images.judgement(plain, tmp_path)
    trained = []

    def pretend(problem, *args, **kwargs):
        trained.append(problem)
        return SimpleNamespace(
            head=FittedHead(
                "linear", {"weight": sign * torch.eye(3).double(), "bias": torch.zeros(3).double()}
            )
        )

    monkeypatch.setattr("probe.train.sgd.probe_sgd", pretend)
    adapter = recipes.build(
        {"backbone": FIRST, "method": "mr2", "solver": "sgd", "train": {"head": "adapter"}}
    )
    sign = -1
    made = images.judgement(adapter, tmp_path, before)
    assert len(trained) == 1
    assert made.judged.tolist() == (images.fold == 0).tolist()
    sign = 1
    wrong = Judgement(np.zeros(90, dtype=bool), np.ones(90, dtype=bool), "", 0.0)
    made = images.judgement(adapter, tmp_path, wrong)
    assert len(trained) == 1 + 5
    assert made.judged.all()


def row(name, kind, hard, *, kept=False, clear=True, why=""):
    gain = {"mean": hard / 100, "ci": [0.0, 0.1], "p": 0.01 if clear else 0.1, "clear": clear}
    return {"name": name, "kind": kind, "kept": kept, "gain": {"hard": gain, "overall": gain}, "why": why}


def told(hard, *, clear):
    gain = {"mean": hard, "ci": [hard - 0.01, hard + 0.01], "p": 0.01, "clear": clear}
    rows = [
        row("choice of l2", "selection", 0.2),
        row("margins", "margins", -0.3),
        row("2 more crops", "views", 0.7),
        row("mirror images", "views", -0.1),
        row("with a", "backbones", 2.0, kept=True),
        row("margins, again", "margins", 0.5, kept=True, clear=False),
        row("fine-tuning", "training", 0.0, why="no time: it takes 40 min") | {"gain": None},
    ]
    report = {"levers": rows, "gain": {"hard": gain, "overall": gain}, "shares": lever_shares.shares(rows)}
    return report, lever_shares.sentence(report)


def test_the_sentence_says_what_each_kind_gave_and_what_was_tried_in_vain():
    report, sentence = told(0.044, clear=True)
    assert sentence.startswith("+4.4 points on the hard third (95 %: +3.4 to +5.4), +4.4 overall; of +2.5 on")
    assert "margins +0.5, further backbones +2.0" in sentence
    assert sentence.endswith("not kept, at best: choice of l2 (+0.2), views (+0.7); no time for: training.")
    assert report["shares"]["margins"]["hard"] == pytest.approx(0.005)
    assert report["shares"]["views"]["best"] == {"name": "2 more crops", "hard": pytest.approx(0.007)}
    (likely,) = lever_shares.remarks(report)
    assert "margins, again" in likely


def test_where_test_images_do_not_confirm_what_was_kept_a_remark_says_so():
    report, sentence = told(0.004, clear=False)
    assert sentence.startswith("Nothing helps clearly on the test images: +0.4")
    unclear, _ = lever_shares.remarks(report)
    assert "not clearly better on the test images" in unclear
    assert lever_shares.remarks({**report, "gain": None}) == []


@pytest.mark.parametrize(
    ("tried", "said"), [(1, "the one lever that was tried does"), (2, "none of 2 levers")]
)
def test_where_nothing_raises_hard_classes_the_sentence_counts_what_was_tried(tried, said):
    rows = [row("choice of l2", "selection", 0.1), row("margins", "margins", 0.2)][:tried]
    report = {"levers": rows, "gain": None, "shares": lever_shares.shares(rows)}
    assert lever_shares.sentence(report).startswith(f"Nothing helps: {said}")


def test_where_there_was_no_time_nothing_is_said_about_what_helps():
    rows = [row("margins", "margins", 0.0, why="no time: it takes 40 min") | {"gain": None}]
    report = {"levers": rows, "gain": None, "shares": lever_shares.shares(rows)}
    said = "No lever was tried: there was no time for any of 1; give it more --minutes."
    assert lever_shares.sentence(report) == said
