"""`probe improve` finds the lever that helps, reads test images once, and says so when nothing does."""

from __future__ import annotations

import json
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner

from probe import recipe as recipes
from probe.cli import main
from probe.data.dataset import Split
from probe.errors import UserError
from probe.evaluation.judging import Judge
from probe.report.html import improvement as page
from probe.runs import improve, judgement, lever_search, lever_shares, levers
from probe.runs.judgement import Judgement
from probe.runs.run import run
from probe.system.time_limit import TimeUp, time_limit
from tests.support import tiny_datasets
from tests.support.lever_world import FIRST, SECOND, NoCosts, blobs, gain_on_test, searched

K, D = 6, 8
RARE = [40, 30, 20, 6, 4, 3]
TESTED = 1500


def world(seed, *, shares=None, second="noise", signal=2.0, dim=D, spread=1.0, images=900):
    """Training and test images: labels, and the features of two backbones."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(K, dim))
    centres *= signal / np.linalg.norm(centres, axis=1, keepdims=True)
    parts = []
    for number in (images, TESTED):
        labels, features = blobs(
            rng, number, classes=K, dim=dim, centres=centres, shares=shares, spread=spread
        )
        tables = {FIRST: features}
        if second is not None:
            knowledge = 2.0 * np.eye(K)[labels] if second == "knows" else 0.0
            tables[SECOND] = rng.normal(size=(len(labels), K)) + knowledge
        parts.append((labels, tables))
    return parts


def test_a_second_backbone_that_knows_more_is_found_and_its_gain_is_clear(tmp_path):
    train, test = world(0, second="knows")
    search = searched(*train, tmp_path)
    kept = {step.name: step.gain["hard"]["mean"] for step in search.steps if step.kept}
    assert max(kept, key=kept.get) == f"with {SECOND}"
    gain = gain_on_test(search, *test)
    assert gain["hard"]["clear"]
    assert gain["hard"]["mean"] > 0.1


def test_where_some_classes_are_rare_what_weighs_them_is_found(tmp_path):
    train, test = world(1, shares=RARE, images=600, dim=6, second=None)
    search = searched(*train, tmp_path)
    kept = [step.name for step in search.steps if step.kept]
    assert kept
    assert set(kept) <= {"class weights", "logit adjustment", "effective frequency"}
    gain = gain_on_test(search, *test)
    assert gain["hard"]["clear"]
    assert gain["hard"]["mean"] > 0.1


def test_where_two_classes_are_wide_larger_margins_for_them_are_found(tmp_path):
    """Plain borders lie half-way, which is too near to a class three times as wide as its neighbours."""
    train, test = world(1, signal=6.0, dim=20, spread=[3, 3, 1, 1, 1, 1], images=500, second=None)
    search = searched(*train, tmp_path)
    assert search.best.method.name == "mr2"
    assert [step.name for step in search.steps if step.kept] == ["margins"]
    gain = gain_on_test(search, *test)
    assert gain["hard"]["clear"]
    assert gain["hard"]["mean"] > 0.02


def finds(seed, work):
    """Does a search on features that know nothing keep something, be it that test images refute it later?"""
    train, _ = world(seed, signal=0.0, images=400)
    return any(step.kept for step in searched(*train, work).steps)


def test_to_answer_hard_classes_more_often_without_knowing_them_is_no_help(tmp_path):
    """Margins of features that know nothing make another class the constant answer, here a hard one."""
    train, _ = world(5, signal=0.0, images=400)
    search = searched(*train, tmp_path)
    (margins,) = (step for step in search.steps if step.name == "margins")
    assert margins.gain["hard"]["clear"]
    assert margins.gain["hard"]["mean"] > 0.2
    assert margins.why == "no better than chance"
    assert not any(step.kept for step in search.steps)


def test_on_pure_noise_nothing_helps(tmp_path):
    assert sum(finds(seed, tmp_path / str(seed)) for seed in range(4)) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_pure_noise_nothing_helps_in_95_of_100_searches(tmp_path):
    assert sum(finds(seed, tmp_path / str(seed)) for seed in range(100)) <= 5


def test_what_is_kept_stays_within_the_budget_on_the_images_that_judge(tmp_path):
    train, _ = world(1, shares=RARE, images=450, second=None)
    search = searched(*train, tmp_path, budget=0.0)
    end = search.images.judge.scores(search.now.correct)
    assert end["mean_per_class"] >= search.base["mean_per_class"] - 1e-9


def test_a_search_that_was_killed_judges_nothing_twice(tmp_path, monkeypatch):
    train, _ = world(2)
    first = searched(*train, tmp_path)
    monkeypatch.setattr(
        "probe.runs.judgement.TrainingImages.judgement",
        lambda self, recipe, work: pytest.fail(f"{recipe.method.name} was judged before"),
    )
    again = searched(*train, tmp_path)
    names = [(s.name, s.kept, s.gain and s.gain["hard"]["mean"]) for s in first.steps]
    assert names == [(s.name, s.kept, s.gain and s.gain["hard"]["mean"]) for s in again.steps]


def test_memory_of_another_search_or_with_a_changed_byte_is_not_believed(tmp_path):
    plain = recipes.build({"method": "erm"})
    made = Judgement(np.array([True, False, True]), np.array([True, True, False]), "l2 1", 2.5)
    memory = lever_search.Memory(tmp_path, "one")
    memory.keep(plain, made)
    found = lever_search.Memory(tmp_path, "one").find(plain)
    assert found.correct.tolist() == made.correct.tolist()
    assert found.judged.tolist() == made.judged.tolist()
    assert (found.chosen, found.seconds) == ("l2 1", 2.5)
    assert lever_search.Memory(tmp_path, "another").find(plain) is None
    file = tmp_path / lever_search.JUDGED
    file.write_text(file.read_text().replace("2.5", "2.4"))
    assert lever_search.Memory(tmp_path, "one").find(plain) is None


def test_gains_equal_a_loop_over_folds_and_classes():
    rng = np.random.default_rng(0)
    labels, fold = rng.integers(0, 6, 400), rng.integers(0, 5, 400)
    correct, before, confidence = rng.random(400) < 0.7, rng.random(400) < 0.6, rng.random(400)
    judge = Judge.ranked(labels, 6, fold, before, confidence)
    gains = judge.gains(correct, before, ("overall", "hard"))
    by_fold = []
    for part in range(5):
        cells = [(labels == k) & (fold == part) for k in judge.groups[part]["hard"]]
        by_fold.append(np.mean([correct[c].mean() - before[c].mean() for c in cells if c.any()]))
    assert gains["hard"]["mean"] == pytest.approx(np.mean(by_fold))
    assert gains["overall"]["mean"] == pytest.approx(correct.mean() - before.mean())
    assert gains["hard"]["clear"] == (gains["hard"]["ci"][0] > 0 or gains["hard"]["ci"][1] < 0)


def test_time_is_a_limit_in_the_middle_of_work():
    with pytest.raises(TimeUp), time_limit(0.05):
        time.sleep(20)
    for seconds in (5.0, 1e300):
        with time_limit(seconds):
            pass


def test_every_lever_makes_a_recipe_that_can_be_run():
    plain = recipes.build({"method": "erm"})
    situation = levers.Situation(plain, np.array([40, 4]), 0.5, ("effnet-lite1",))
    found = levers.levers(situation)
    kinds = {*levers.LOSSES, *levers.FEATURES, *levers.TRAININGS}
    assert {lever.kind for lever in found} == kinds - {"taps"}
    assert set(lever_shares.KINDS) == kinds
    digests = {lever.name: lever.applied(plain).digest for lever in found}
    assert len({*digests.values(), plain.digest}) == len(found) + 1
    balanced = levers.levers(levers.Situation(plain, np.array([40, 40]), 0.5))
    assert "logit adjustment" not in {lever.name for lever in balanced}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three classes of small pictures, 12 to learn from and 6 to test in each."""
    root = tmp_path_factory.mktemp("pictures")
    number = 0
    for split, each in (("train", 12), ("test", 6)):
        for name in ("ant", "bee", "cow"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for _ in range(each):
                (folder / f"{number}.png").write_bytes(tiny_datasets.encoded(tiny_datasets.picture(number)))
                number += 1
    return root


@pytest.fixture(scope="module")
def improved(pictures, tmp_path_factory):
    """A whole `probe improve`; every read of a test image before the end is an error."""
    out, searching = tmp_path_factory.mktemp("out"), []
    patch = pytest.MonkeyPatch()
    plain_search, read = lever_search.Search.run, Split.__getitem__

    def run_search(self):
        searching.append(True)
        try:
            return plain_search(self)
        finally:
            searching.clear()

    def guarded(self, index):
        assert not (searching and self.name == "test"), "a test image was read during the search"
        return read(self, index)

    patch.setattr(lever_search.Search, "run", run_search)
    patch.setattr(lever_search, "Costs", lambda images: FewCosts())
    patch.setattr(Split, "__getitem__", guarded)
    patch.setattr(Split, "digests", property(_digests(searching, Split.__dict__["digests"].func)))
    recipe = recipes.build({"backbone": FIRST, "data": str(pictures)})
    found = improve.improve(recipe, minutes=5, backbones=[SECOND], cache=out / "cache", out=out / "runs")
    patch.undo()
    return found, out


def _digests(searching, plain):
    def digests(self):
        assert not (searching and self.name == "test"), "a test image was hashed during the search"
        if "_kept" not in self.__dict__:
            self.__dict__["_kept"] = plain(self)
        return self.__dict__["_kept"]

    return digests


class FewCosts(NoCosts):
    """Views and a second backbone are tried, trainings are not."""

    def judging(self, recipe, plain):
        return float("inf") if recipe.trains or recipe.backbone.image_size else 0.0


def test_the_folder_tells_what_was_tried_and_the_recipe_repeats_it(improved):
    found, out = improved
    report = json.loads((found.folder / improve.FILE).read_text())
    assert report == found.report
    assert {"baseline", "chosen", "gain", "levers", "budget", "seconds", "sentence"} <= set(report)
    names = [row["name"] for row in report["levers"]]
    assert {"margins", "mirror images", f"with {SECOND}", "fine-tuning"} <= set(names)
    for row in report["levers"]:
        untried = row["why"].startswith(("no time", "not possible", "skipped"))
        assert (row["gain"] is None) == untried, row
        assert row["gain"] is None or {"mean", "ci", "p"} <= set(row["gain"]["hard"])
    content = yaml.safe_load((found.folder / "recipe.yaml").read_text())
    again = run(recipes.build(content), cache=out / "cache", out=out / "again")
    assert again.result["test"]["top1"] == report["chosen"]["test"]["top1"]
    assert report["baseline"]["top1"] >= 0
    assert not list((out / "runs").glob(".*improve*"))


def test_the_page_and_the_terminal_show_the_levers_and_the_sentence(improved, pictures):
    found, out = improved
    html = (found.folder / "report.html").read_text()
    assert "frontier" in html
    assert "Look at these first" in html
    hardest = found.report["look_first"]["classes"][0]
    assert page.together(hardest["text"]) in html
    assert set(found.report["shares"]) >= {"selection", "margins", "views", "backbones"}
    kept = any(share["kept"] for share in found.report["shares"].values())
    assert ("What each kind of lever gave" in html) == kept
    assert f"with {SECOND}" in html
    assert page.together(found.report["sentence"]) in html
    runner = CliRunner()
    words = ["improve", "--backbone", FIRST, "--data", str(pictures), "--minutes", "0.001"]
    refused = runner.invoke(main, [*words, "--cache", str(out / "other"), "--out", str(out / "runs")])
    assert refused.exit_code == 2
    assert "give more --minutes" in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "-1"], "budget"),
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "minutes must be a finite number above 0, not nan"),
        (["--minutes", "inf"], "minutes must be a finite number above 0, not inf"),
        (["--budget", "nan"], "budget"),
        (["--finetune"], "plain probe"),
        (["--with", "effnet-lite9"], "effnet-lite1"),
        (["--groups", "paper"], "leave --groups"),
        (["--select", "hard"], "--select"),
        (["train.epochs=3"], "train.epochs=3"),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path):
    result = CliRunner().invoke(main, ["improve", "--data", "digits", "--out", str(tmp_path), *words])
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_nothing_that_is_not_a_plain_probe_is_improved():
    with pytest.raises(UserError, match="plain probe"):
        improve.start(recipes.build({"solver": "knn"}))


def test_two_classes_have_no_hard_third_and_that_is_one_line(pictures, tmp_path):
    root = tmp_path / "two"
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            shutil.copytree(pictures / split / name, root / split / name)
    with pytest.raises(UserError, match="three classes"):
        improve.improve(
            recipes.build({"backbone": FIRST, "data": str(root)}), minutes=5, backbones=[], out=tmp_path
        )


def test_a_tap_is_added_of_the_same_network():
    plain = recipes.build({"backbone": {"name": "clip-rn50", "weights": "/my.pt", "image_size": 256}})
    found = levers.levers(levers.Situation(plain, np.array([9, 9, 9]), 0.5))
    (lever,) = (lever for lever in found if "pooled" in lever.name)
    first, added = lever.applied(plain).backbone.parts
    assert added == first.model_copy(update={"tap": "pooled"})


def test_fine_tuning_is_judged_by_images_that_it_was_not_trained_on(pictures, tmp_path, monkeypatch):
    """Also where an image cannot be read: rows of features and of images then differ."""
    root = tmp_path / "broken"
    shutil.copytree(pictures, root)
    next(iter(sorted((root / "train" / "ant").iterdir()))).write_bytes(b"not a picture")
    plain = recipes.build({"backbone": FIRST, "data": {"name": str(root), "skip_bad_images": True}})
    images = judgement.TrainingImages(improve.start(plain), tmp_path / "cache")
    tuned = plain.model_copy(update={"finetune": True})
    seen = {}

    def pretend(recipe, data, held, *, folder, pose):
        seen["train"], seen["test"] = data["train"].ids, data["test"].ids
        assert list(pose(None).ids) == data["train"].ids
        names = list(data["test"].labels)
        return SimpleNamespace(scores=torch.eye(3)[names])

    monkeypatch.setattr("probe.train.finetuning.finetune", pretend)
    made = images.judgement(tuned, tmp_path)
    ids = np.array(images.ids)
    assert sorted([*seen["train"], *seen["test"]]) == sorted(ids)
    assert seen["test"] == ids[images.fold == 0].tolist()
    assert made.judged.tolist() == (images.fold == 0).tolist()
    assert made.correct[made.judged].all()


def test_backbones_that_may_be_added_are_those_given_none_or_left_open():
    assert improve.names(("effnet-lite1 effnet-lite2", "resnet50")) == [
        "effnet-lite1",
        "effnet-lite2",
        "resnet50",
    ]
    assert improve.names(("",)) == []
    assert improve.names(()) is None
