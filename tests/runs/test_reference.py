"""What a training is compared with: its frozen probe, or erm trained alike; never an untrained net."""

import io
import json
from contextlib import redirect_stdout

import numpy as np
import pytest
from click.testing import CliRunner

import probe.runs.run
from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.evaluation import groups
from probe.recipe.schema import LATER
from probe.report.text import run as terminal
from probe.runs.naming import label, slug
from probe.runs.run import run
from probe.runs.staleness import Present
from tests.support.stored_runs import accuracy, predictions

SMALL = {"name": "effnet-lite0", "image_size": 32}
TRAIN = {"epochs": 2, "batch_size": 16}


def content(colours, **more):
    base = {"backbone": SMALL, "data": str(colours), "method": "mr2", "solver": {"name": "sgd", "l2": 1.0}}
    return {**base, "train": TRAIN, "seeds": 2, **more}


def scratch(colours, **more):
    backbone = {"backbone": "cifar-resnet20", "finetune": True, "train": {**TRAIN, "epochs": 1}}
    return {"data": str(colours), "seeds": 1, **backbone, **more}


@pytest.fixture
def trainings(monkeypatch):
    """The labels of all that is trained, in order."""
    seen = []
    real = probe.runs.run.fit

    def watched(strategy, *arguments):
        seen.append(label(strategy.recipe))
        return real(strategy, *arguments)

    monkeypatch.setattr("probe.runs.run.fit", watched)
    return seen


def test_a_training_of_pretrained_weights_is_compared_with_their_frozen_probe(colours, cache, tmp_path):
    done = run(recipe.build(content(colours)), cache=cache, out=tmp_path)
    gain = done.result["versus"]
    assert (gain["method"], gain["how"], gain["run"]) == ("erm", "frozen probe", None)
    exact = {**content(colours), "method": "erm", "solver": "lbfgs", "train": {}}
    probed = run(recipe.build(exact), cache=cache, out=tmp_path)
    assert accuracy(done.folder, "erm") == probed.result["test"]["top1"]


def test_versus_same_trains_erm_alike_and_pairs_by_image_and_seed(colours, cache, tmp_path, trainings):
    done = run(recipe.build(content(colours, versus="same")), cache=cache, out=tmp_path)
    assert trainings == ["erm-sgd", "mr2-sgd"]
    gain = done.result["versus"]
    erm = recipe.build(content(colours, method="erm"))
    assert (gain["method"], gain["how"], gain["run"]) == ("erm", "same training", slug(erm))
    mine, other = predictions(done.folder, "erm"), predictions(tmp_path / slug(erm), "erm-sgd")
    for name in ("id", "seed", "prediction"):
        assert np.array_equal(mine[name], other[name])
    apart = accuracy(done.folder, "mr2-sgd") - accuracy(tmp_path / slug(erm), "erm-sgd")
    assert gain["gain"]["overall"]["mean"] == pytest.approx(apart)
    assert any(slug(erm) in remark for remark in done.result["remarks"])
    page = (done.folder / "report.html").read_text()
    assert "erm (same training)" in page
    with redirect_stdout(io.StringIO()) as out:
        terminal.show(done.result, "here")
    assert "vs erm (same training)" in out.getvalue()


def test_the_trained_erm_is_reused_and_survives_a_stop(colours, cache, tmp_path, trainings, monkeypatch):
    from probe.runs import seeds

    def stopped(recipe, *arguments):
        if recipe.method.name == "la":
            raise KeyboardInterrupt
        return real(recipe, *arguments)

    real = seeds.probes
    monkeypatch.setattr(seeds, "probes", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(recipe.build(content(colours, method="la", versus="same")), cache=cache, out=tmp_path)
    monkeypatch.setattr(seeds, "probes", real)
    for method in ("la", "sam(mr2)"):
        done = run(recipe.build(content(colours, method=method, versus="same")), cache=cache, out=tmp_path)
        assert done.result["versus"]["how"] == "same training"
    assert trainings == ["erm-sgd", "la-sgd", "la-sgd", "sam(mr2)-sgd"]
    assert done.result["method"] == "sam(mr2)-sgd"
    assert set(predictions(done.folder)["method"]) == {"sam(mr2)-sgd", "erm"}


def test_the_default_leaves_every_digest_as_it_was(colours):
    import hashlib

    r = recipe.build(content(colours))
    before = r.model_dump()
    for key in LATER:
        *parents, last = key.split(".")
        section = before
        for parent in parents:
            section = section[parent]
        del section[last]
    before["train"]["channels_last"] = False  # its default was that
    del before["device"], before["solver"]["tf32"]  # never part of it
    assert "partners" not in before["train"]
    assert r.digest == hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()
    assert recipe.build(content(colours, versus="same")).digest != r.digest
    assert recipe.build(content(colours, versus="same")).plain == recipe.build(content(colours, method="erm"))


def test_a_comparison_of_trainings_adds_their_erm_and_uses_it(colours, cache, tmp_path):
    words = [
        "compare",
        "--backbones",
        "effnet-lite0",
        "--data",
        str(colours),
        "--methods",
        "mr2 sam(mr2, rho=0.1)",
    ]
    words += [
        "solver.name=sgd",
        "solver.l2=1",
        "backbone.image_size=32",
        "train.epochs=2",
        "train.batch_size=16",
    ]
    words += ["--seeds", "2", "--cache", str(cache), "--out", str(tmp_path)]
    answer = CliRunner().invoke(main, words, env={"COLUMNS": "80"})
    assert answer.exit_code == 0, answer.output
    (folder,) = tmp_path.glob("compare-*")
    comparison = json.loads((folder / "comparison.json").read_text())
    erm, mr2, sam = comparison["rows"]
    assert [row["method"] for row in comparison["rows"]] == ["erm-sgd", "mr2-sgd", "sam(mr2, rho=0.1)-sgd"]
    assert (comparison["reference"], comparison["how"]) == ("erm", "same training")
    assert erm["statistics"]["overall"]["gain"] is None
    for row in (mr2, sam):
        apart = row["statistics"]["overall"]["accuracy"] - accuracy(tmp_path / erm["run"], "erm-sgd")
        assert row["statistics"]["overall"]["gain"]["mean"] == pytest.approx(apart)
    own = json.loads((tmp_path / mr2["run"] / "result.json").read_text())
    assert own["versus"]["how"] == "frozen probe"  # beside itself, the run says what it gains over the probe
    assert "gain over erm (same training)" in " ".join(answer.stdout.split())
    assert max(map(len, answer.stdout.splitlines()[:-1])) <= 80
    assert "erm (same training)" in (folder / "comparison.html").read_text()


def test_a_comparison_takes_no_other_erm(colours):
    words = [
        "compare",
        "--backbones",
        "effnet-lite0",
        "--data",
        str(colours),
        "--methods",
        "mr2",
        "versus=probe",
    ]
    answer = CliRunner().invoke(main, [*words, "solver.name=sgd"])
    assert answer.exit_code == 2
    assert "always with erm of the same settings" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def from_scratch(colours, cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("scratch")
    return run(recipe.build(scratch(colours, method="drw(ldam)")), cache=cache, out=out)


def test_a_net_from_scratch_is_compared_with_erm_from_scratch(from_scratch, colours):
    result, out = from_scratch.result, from_scratch.folder.parent
    erm = recipe.build(scratch(colours, method="erm"))
    assert (result["versus"]["how"], result["versus"]["run"]) == ("same training", slug(erm))
    assert result["diagnostics"]["look_first"] is None  # there are no frozen features to look at
    assert not (from_scratch.folder / "crossfit.parquet").exists()
    assert accuracy(from_scratch.folder, "erm") == accuracy(out / slug(erm), "erm-finetune")
    plain = json.loads((out / slug(erm) / "result.json").read_text())
    assert plain["versus"] is None
    assert set(predictions(out / slug(erm))["method"]) == {"erm-finetune"}


def test_its_classes_are_ranked_by_rows_that_the_ranking_training_did_not_see(from_scratch, colours):
    result, out = from_scratch.result, from_scratch.folder.parent
    assert result["groups_by"] == "held-out"
    ranker = json.loads((out / result["groups_from"] / "result.json").read_text())
    assert ranker["recipe"]["method"]["name"] == "erm"
    assert ranker["recipe"]["train"]["keep"] == "best"  # which holds rows out
    assert ranker["groups_by"] == "held-out"
    members = {name: block["classes"] for name, block in ranker["test"]["groups"].items()}
    for name in (from_scratch.folder.name, result["versus"]["run"]):
        other = json.loads((out / name / "result.json").read_text())
        assert {name: block["classes"] for name, block in other["test"]["groups"].items()} == members
    assert any("held out" in remark for remark in result["remarks"])
    assert not any("untrained" in remark for remark in result["remarks"])


def test_the_features_of_an_untrained_net_are_not_looked_at(from_scratch):
    assert "features" not in from_scratch.result["diagnostics"]
    assert set(from_scratch.result["diagnostics"]["methods"]) == {"drw(ldam)-finetune"}


def test_an_untrained_net_is_never_the_reference(colours, tmp_path):
    r = recipe.build(scratch(colours, method="mr2", versus="probe"))
    with pytest.raises(UserError, match=r"before it has learnt anything; use versus=same"):
        run(r, cache=tmp_path, out=tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_runs_ranked_by_an_untrained_net_are_run_again(from_scratch, colours, cache):
    result, r = from_scratch.result, recipe.build(scratch(colours, method="drw(ldam)"))
    assert Present(cache).change(r, result) is None
    assert "before it was trained" in Present(cache).change(r, {**result, "groups_by": "crossfit"})


def test_given_weights_make_a_net_a_pretrained_one(tmp_path):
    from probe.runs.reference import how

    content = {"backbone": "cifar-resnet20", "finetune": True, "method": "mr2"}
    assert recipe.build(content).from_scratch
    trained = recipe.build({**content, "backbone": {"name": "cifar-resnet20", "weights": "mine.safetensors"}})
    assert not trained.from_scratch
    assert how(trained) == "frozen probe"


def test_held_out_rows_rank_classes_by_accuracy_then_by_certainty():
    labels = np.array([0, 0, 1, 1, 2, 2])
    sure = np.array([0.9, 0.9, 0.9, 0.1, 0.6, 0.6])  # of the true class: 0 and 2 are always right
    probability = np.full((6, 3), 0.0)
    probability[np.arange(6), labels] = sure
    probability[np.arange(6), (labels + 1) % 3] = 1 - sure
    assert groups.held_out(labels, probability, 3) == {"easy": [0], "medium": [2], "hard": [1]}
    assert groups.held_out(labels, np.pad(probability, ((0, 0), (0, 1))), 4) is None  # nothing of class 3
