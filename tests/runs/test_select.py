"""`select` and ranges in a run: chosen without the test split, recorded, and said."""

import json
from dataclasses import replace

import pytest

from probe import recipe
from probe.errors import UserError
from probe.probing.select_l2 import LogisticPath, select_l2
from probe.probing.selection import Selector
from probe.runs import run as runs
from probe.runs import seeds, selecting
from probe.runs.inputs import gather
from probe.runs.posing import pose
from probe.runs.strategy import choose

SMALL = {"name": "effnet-lite0", "image_size": 32}
SGD = {"solver": {"name": "sgd", "l2": 1.0}, "train": {"epochs": 2, "batch_size": 16}}


def built(colours, **more):
    return recipe.build({"backbone": SMALL, "data": str(colours), "method": "la", **more})


class Sealed:
    """A split whose every use fails while a choice is open."""

    def __init__(self, features):
        self.__dict__.update(features=features, open=False)

    def __getattr__(self, name):
        if not self.__dict__["open"]:
            raise AssertionError(f"the test split was asked for its {name} before the choice was made")
        return getattr(self.__dict__["features"], name)


@pytest.mark.parametrize("more", [{}, SGD], ids=["exact", "sgd"])
def test_test_images_are_not_looked_at_before_everything_is_chosen(
    colours, cache, tmp_path, monkeypatch, more
):
    r = built(colours, method="la(tau=[0, 1])", select="hard", **more)
    inputs = gather(r, cache=cache)
    test = Sealed(inputs.features["test"])
    inputs = replace(inputs, features={**inputs.features, "test": test})
    choices = []
    real = Selector.choose

    def watched(self, *arguments):
        test.__dict__["open"] = False
        found = real(self, *arguments)
        choices.append(found)
        test.__dict__["open"] = True
        return found

    monkeypatch.setattr(Selector, "choose", watched)
    if more:  # the last thing that is chosen is a training's value
        monkeypatch.setattr(seeds.Trials, "choose", _opening(seeds.Trials.choose, test))
    fitted = runs.fit(choose(r), inputs, None, tmp_path)
    assert fitted.fitted.scores[0].shape == (len(test.y), 4)
    assert choices


def _opening(real, test):
    def choose(self):
        found = real(self)
        test.__dict__["open"] = True
        return found

    return choose


def test_a_choice_is_recorded_logged_and_said(colours, cache, tmp_path):
    r = built(colours, method="la(tau=[0, 0.5, 1])", select={"name": "budget", "budget": 2}, seeds=2)
    done = runs.run(r, cache=cache, out=tmp_path)
    for row in done.result["seeds"]:
        chosen = row["select"]
        assert (chosen["objective"], chosen["budget"], chosen["by"]) == ("budget", 2, "cross-fitting")
        assert {t["parameters"]["tau"] for t in chosen["tried"]} == {0, 0.5, 1}
        assert {"overall", "mean_per_class", "hard", "worst_tenth"} <= set(chosen["tried"][0])
        assert chosen["parameters"]["tau"] in (0, 0.5, 1)
    logged = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
    assert [row["select"] for row in logged] == [row["select"] for row in done.result["seeds"]]
    said = [
        remark
        for remark in done.result["remarks"]
        if remark.startswith("select: budget of 2 points chose tau")
    ]
    assert len(said) == 1
    assert done.result["versus"]["method"] == "erm"
    assert recipe.build(recipe.read(done.folder / "recipe.yaml")) == r


def test_the_default_chooses_on_the_holdout_by_the_metric_as_ever(colours, cache, tmp_path):
    r = built(colours, method="erm")
    inputs = gather(r, cache=cache)
    problem, holdout = pose(r, inputs), inputs.holdout(0, 0.2)
    assert selecting.selectors(r, problem, [holdout]) == []
    fitted = runs.fit(choose(r), inputs, None, tmp_path).fitted.fits[0]
    ever = select_l2(
        problem, r.solver, holdout, LogisticPath(problem, lambda rows: problem.loss(r.method, rows))
    )
    assert {key: fitted.record[key] for key in ever} == ever
    assert "select" not in fitted.record


def test_values_are_trained_without_the_holdout_and_a_finished_one_is_not_trained_again(
    colours, cache, tmp_path, monkeypatch
):
    r = built(colours, method="la(tau=[0, 1])", select="worst-tenth", **SGD)
    real, trained = seeds.probe_sgd, []

    def stopped(problem, method, *arguments, settings, **more):
        trained.append((method.params["tau"], settings.keep))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(problem, method, *arguments, settings=settings, **more)

    monkeypatch.setattr(seeds, "probe_sgd", stopped)
    with pytest.raises(KeyboardInterrupt):
        runs.run(r, cache=cache, out=tmp_path)
    done = runs.run(r, cache=cache, out=tmp_path)
    chosen = done.result["seeds"][0]["select"]
    assert trained == [(0, "best"), (1, "best"), (1, "best"), (chosen["parameters"]["tau"], "last")]
    assert chosen["by"] == "trainings without the holdout"
    assert [t["parameters"]["tau"] for t in chosen["tried"]] == [0, 1]
    assert '"select"' in (done.folder / "log.jsonl").read_text().splitlines()[0]


def test_the_penalty_of_an_sgd_probe_is_chosen_for_the_same(colours, cache, tmp_path):
    r = built(colours, select="worst-tenth", solver="sgd", train={"epochs": 1})
    [row] = runs.run(r, cache=cache, out=tmp_path).result["seeds"]
    assert row["select"]["objective"] == "worst-tenth"
    assert row["l2"] in {t["l2"] for t in row["select"]["tried"]}


@pytest.mark.slow
def test_fine_tuning_tries_the_listed_values(colours, cache, tmp_path):
    r = built(colours, method="la(tau=[0, 1])", finetune=True, train={"epochs": 1, "lr": 1e-4}, select="hard")
    done = runs.run(r, cache=cache, out=tmp_path)
    assert len(done.result["seeds"][0]["select"]["tried"]) == 2
    assert done.result["training"] is not None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"select": {"name": "budget", "budget": -1}}, "select.budget"),
        ({"select": "hrad"}, "select.name"),
        ({"select": {"name": "hard", "budget": 1}}, "it is for --select budget"),
        ({"select": "hard", "solver": "knn", "method": "erm"}, "nothing is chosen here"),
        ({"select": "hard", "solver": "zeroshot", "method": "erm"}, "nothing is chosen here"),
        ({"select": "hard", "solver": {"l2": 1}}, "nothing is chosen here"),
        ({"select": "hard", "finetune": True, "method": "erm"}, "nothing is chosen here"),
        ({"method": "la(tau=[])"}, "the range of tau is empty"),
        ({"method": "la(tau=[0, high])"}, "la: tau must be a number, not 'high'"),
        ({"method": "la(power=[0, 1])"}, 'la has no parameter "power"'),
        (
            {"method": "la(tau=[0, 1])", "backbone": "cifar-resnet20", "finetune": True, "select": "hard"},
            "use overall, mean-per-class or worst-tenth",
        ),
    ],
)
def test_bad_input_is_one_line_before_anything_is_computed(content, line):
    with pytest.raises(UserError) as caught:
        runs.check(choose(recipe.build(content)))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_range_is_enough_for_a_given_l2_and_the_flag_is_there():
    runs.check(choose(recipe.build({"method": "la(tau=[0, 1])", "solver": {"l2": 1}, "select": "hard"})))
    plain = recipe.build({"method": "la(tau=[0, 1])", "solver": {"l2": 1}, "select": "hard"}).plain
    runs.check(choose(plain))  # erm, where nothing is left to choose
