"""From two names to a class-by-class result."""

import json
import shutil
import stat

import numpy as np
import pytest
import torch

import probe
from probe import recipe
from probe.errors import UserError
from probe.heads import fitted
from probe.runs.folder import read_result
from probe.runs.predict import predict
from probe.runs.run import run
from probe.system import digest_index
from tests.support.stored_runs import accuracy, predictions

SMALL = {"name": "effnet-lite0", "image_size": 32}


@pytest.fixture(scope="module")
def finished(colours, cache, tmp_path_factory):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "method": "mr2", "seeds": 2})
    return run(r, cache=cache, out=tmp_path_factory.mktemp("runs"))


def test_the_folder_holds_everything_and_nothing_unfinished(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names >= {"recipe.yaml", "result.json", "head.safetensors", "predictions.parquet", "log.jsonl"}
    assert names >= {"crossfit.parquet", "report.html", "SHA256SUMS"}
    assert not [path for path in finished.folder.parent.rglob("*") if path.name.startswith(".tmp-")]
    assert json.loads((finished.folder / "result.json").read_text()) == finished.result


def test_the_clock_says_where_all_of_the_time_went(finished):
    *stages, total = finished.result["timing"].items()
    assert [name for name, _ in stages][-1] == "report"
    assert total[0] == "total"
    assert 0.9 * total[1] <= sum(seconds for _, seconds in stages) <= total[1]


def test_the_folder_is_private_and_its_checksums_notice_a_changed_bit(finished, tmp_path):
    assert stat.S_IMODE(finished.folder.stat().st_mode) == 0o700
    for name in ("head.safetensors", "result.json"):
        folder = shutil.copytree(finished.folder, tmp_path / name)
        content = bytearray((folder / name).read_bytes())
        content[-3] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is not as it was written: SHA256SUMS says otherwise"):
            fitted.load(folder) if name.startswith("head") else read_result(folder)


def test_a_named_cache_holds_the_digests_of_the_images_too(finished, cache):
    assert (cache / digest_index.NAME).is_file()


def test_the_result_follows_the_published_schema(finished):
    result = finished.result
    assert {"schema", "recipe", "backbone", "data", "seeds", "environment", "timing", "margins"} <= set(
        result
    )
    assert {"top1", "top5", "mean_per_class", "worst", "best", "gap", "std", "groups", "by_class"} <= set(
        result["test"]
    )
    assert list(result["test"]["groups"]) == ["easy", "medium", "hard"]
    assert result["versus"]["method"] == "erm"
    assert {"overall", "easy", "medium", "hard"} <= set(result["versus"]["gain"])
    assert [row["name"] for row in result["test"]["by_class"]] == ["blue", "green", "grey", "red"]
    assert sum(len(g["classes"]) for g in result["test"]["groups"].values()) == 4
    assert len(result["data"]["validation"]["digests"]) == 2


def test_the_numbers_are_those_of_the_stored_predictions(finished):
    table = predictions(finished.folder)
    assert set(table["method"]) == {"mr2", "erm"}
    assert (table["method"] == "mr2").sum() == 2 * 32
    assert finished.result["test"]["top1"] == pytest.approx(accuracy(finished.folder, "mr2"))
    assert finished.result["test"]["top1"] > 0.6  # far above chance
    gain = accuracy(finished.folder, "mr2") - accuracy(finished.folder, "erm")
    assert finished.result["versus"]["gain"]["overall"]["mean"] == pytest.approx(gain)


def test_margins_average_to_one_and_the_run_says_what_does_not_act(finished):
    gammas = [row["gamma"] for row in finished.result["margins"]["by_class"]]
    assert np.mean(gammas) == pytest.approx(1, rel=1e-5)
    assert any("representation term has no effect" in remark for remark in finished.result["remarks"])


def test_margins_are_judged_by_how_hard_classes_are_for_held_out_training_images(finished):
    from scipy.stats import spearmanr

    margins = finished.result["margins"]
    rows = margins["by_class"]
    accuracy = [row["held_out_accuracy"] for row in rows]
    assert all(0 <= a <= 1 for a in accuracy)
    if len(set(accuracy)) > 1:
        want = spearmanr([row["gamma"] for row in rows], [-a for a in accuracy]).statistic
        assert margins["rank_correlation"] == pytest.approx(want)
        (said,) = [r for r in finished.result["remarks"] if "rank correlation" in r]
        assert f"{abs(want):.2f}" in said
    else:
        assert margins["rank_correlation"] is None
    assert '"held-out accuracy %"' in (finished.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (0.412, "margins are larger for harder classes: +0.41"),
        (-0.3, "margins are larger for easier classes: \N{MINUS SIGN}0.30"),
        (0.02, "margins hardly follow how hard a class is: +0.02"),
    ],
)
def test_the_rank_correlation_is_said_in_words(number, says):
    from probe.runs.metadata import margins_remark

    assert margins_remark(number).startswith(says)
    assert margins_remark(None) is None


def test_groups_can_be_those_of_a_file_or_the_ranking_of_another_run(finished, colours, cache, tmp_path):
    base = {"backbone": SMALL, "data": str(colours), "method": "mr2", "solver": {"l2": 1}}
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"warm": ["red"], "cold": ["blue", "green", "grey"]}))
    named = run(recipe.build({**base, "groups": str(file)}), cache=cache, out=tmp_path).result
    assert {g: block["classes"] for g, block in named["test"]["groups"].items()} == json.loads(
        file.read_text()
    )
    assert (named["groups_by"], named["groups_from"]) == ("file", str(file))
    assert {"overall", "warm", "cold"} <= set(named["versus"]["gain"])

    reference = {"reference": str(finished.folder)}
    ranked = run(recipe.build({**base, "groups": reference}), cache=cache, out=tmp_path).result
    accuracy = {row["name"]: row["accuracy"] for row in finished.result["test"]["by_class"]}
    order = [name for block in ranked["test"]["groups"].values() for name in block["classes"]]
    assert [accuracy[name] for name in order] == sorted(accuracy.values(), reverse=True)
    assert (ranked["groups_by"], ranked["groups_from"]) == ("reference", str(finished.folder))
    assert any(str(finished.folder) in remark for remark in ranked["remarks"])


@pytest.mark.parametrize(
    ("groups", "says"),
    [("absent.json", "cannot read groups"), ({"reference": "no/run"}, "cannot read the reference run")],
)
def test_groups_that_cannot_be_read_stop_a_run_before_extraction(groups, says, colours, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "groups": groups})
    with pytest.raises(UserError, match=says) as error:
        run(r, cache=tmp_path / "cache", out=tmp_path / "runs")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_same_recipe_gives_the_same_numbers_from_the_cache(finished, cache, tmp_path):
    again = run(recipe.build(recipe.read(finished.folder / "recipe.yaml")), cache=cache, out=tmp_path)
    assert again.result["test"] == finished.result["test"]
    assert again.result["versus"] == finished.result["versus"]
    assert (again.folder / "head.safetensors").read_bytes() == (
        finished.folder / "head.safetensors"
    ).read_bytes()


def test_a_saved_head_predicts_new_images_as_the_run_did(finished, colours):
    images = sorted((colours / "test").rglob("*.png"))
    mine = predictions(finished.folder, "mr2")
    first = mine["seed"] == 0
    order = np.argsort(mine["id"][first])
    names = [guess["classes"][0]["name"] for guess in predict(finished.folder, images, top=2)]
    expected = [["blue", "green", "grey", "red"][k] for k in mine["prediction"][first][order]]
    assert names == expected


def test_a_run_folder_loads_as_a_classifier(finished, colours, cache):
    clf = probe.load(finished.folder)
    assert clf.class_names_ == ["blue", "green", "grey", "red"]
    d = probe.data.load(str(colours))
    import backbones

    f = probe.features.extract(backbones.load(**SMALL), d["test"], cache=cache)
    assert probe.evaluate(clf, f)["test"]["top1"] > 0.6


@pytest.mark.parametrize("solver", ["knn", "ridge"])
def test_other_solvers_are_compared_with_the_exact_plain_probe(solver, colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "solver": solver})
    result = run(r, cache=cache, out=tmp_path).result
    assert result["recipe"]["method"]["name"] == "erm"
    assert result["versus"]["method"] == "erm"
    assert result["test"]["top1"] > 0.5


@pytest.mark.parametrize("method", ["la", "cb", "ldam-linear", "ef", "dro", "elm", "mr2-released"])
def test_every_convex_method_is_solved_exactly_on_the_cache(method, colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "method": method, "solver": {"l2": 1.0}})
    result = run(r, cache=cache, out=tmp_path).result
    assert result["seeds"][0]["status"] == "converged"
    assert result["test"]["top1"] > 0.5
    if method in ("la", "cb"):  # balanced data: exactly cross-entropy, and the report says so
        assert result["versus"]["gain"]["overall"]["mean"] == 0
        assert any("cannot differ" in remark for remark in result["remarks"])


def test_plain_erm_is_compared_with_nothing(colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "method": "erm", "solver": {"l2": 1.0}})
    result = run(r, cache=cache, out=tmp_path).result
    assert result["versus"] is None
    assert result["seeds"][0]["l2"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method": "mr3"}, "mr3.*mr2"),
        ({"method": {"name": "mr2", "lamb": 1}}, "lamb.*lam"),
        ({"method": "center"}, "center has no effect on frozen features"),
        ({"method": "mr2", "solver": "knn"}, "knn minimises no loss"),
        ({"solver": "zeroshot"}, "text encoder"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(content, message, colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), **content})
    with pytest.raises(UserError, match=message):
        run(r, cache=cache, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_probing_leaves_the_backbone_as_it_was(finished):
    import backbones

    assert finished.result["backbone"]["fingerprint"] == backbones.load(**SMALL).fingerprint
    assert torch.is_grad_enabled()


def test_a_seed_that_changes_nothing_is_run_once_and_said(colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "solver": "knn", "seeds": 3})
    result = run(r, cache=cache, out=tmp_path).result
    assert len(result["seeds"]) == 1
    assert any("one was run instead of 3" in remark for remark in result["remarks"])


def test_an_untrained_net_is_called_untrained(colours, cache, tmp_path):
    r = recipe.build(
        {"backbone": "cifar-resnet20", "data": str(colours), "method": "erm", "solver": {"l2": 1}}
    )
    assert any("random weights" in remark for remark in run(r, cache=cache, out=tmp_path).result["remarks"])


def test_a_run_says_what_it_was_compared_with(finished):
    assert finished.result["versus"]["how"] == "frozen probe"
    assert finished.result["method"] == "mr2"
    assert "over erm (frozen probe)" in (finished.folder / "report.html").read_text()


def test_parameters_stand_in_the_name_of_a_method(colours, cache, tmp_path):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "method": "mr2(p=1.5)", "solver": {"l2": 1.0}})
    done = run(r, cache=cache, out=tmp_path)
    assert done.result["method"] == "mr2(p=1.5)"
    assert set(predictions(done.folder)["method"]) == {"mr2(p=1.5)", "erm"}


def test_a_reader_is_told_that_the_long_tail_was_made(finished, colours, cache, tmp_path):
    given = {"data": {"name": str(colours), "imbalance": 3}, "method": "erm", "solver": {"l2": 1.0}}
    thin = run(recipe.build({"backbone": SMALL, **given}), cache=cache, out=tmp_path).result
    used = thin["data"]["sizes"]["train"]
    assert used < 60
    assert sum(f"{used} of 60 images of train are used, imbalance 3" in s for s in thin["remarks"]) == 1
    assert not any("long tail" in said for said in finished.result["remarks"])
