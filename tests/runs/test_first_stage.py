"""A second stage on a finished run: its encoder and head are reloaded, and only the head changes."""

from __future__ import annotations

import shutil

import pytest
import torch

from probe import recipe
from probe.errors import UserError
from probe.heads import fitted
from probe.runs.naming import label
from probe.runs.predict import predict
from probe.runs.run import run
from probe.runs.staleness import Present
from tests.support.stored_runs import predictions
from tests.support.training_world import tiny_vit

SOLVED = {"l2": 1.0}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return {"name": f"timm:{folder}", "image_size": 32}


@pytest.fixture(scope="module")
def tuned(vit, colours, cache, tmp_path_factory):
    """A fine-tuning that held images out."""
    train = {"epochs": 2, "batch_size": 16, "lr": 1e-3, "keep": "best"}
    content = {"backbone": vit, "data": str(colours), "method": "erm", "finetune": True, "train": train}
    return run(recipe.build(content), cache=cache, out=tmp_path_factory.mktemp("first"))


def second(vit, colours, tuned, method, **more):
    method = {**method, "first": str(tuned.folder)}
    return recipe.build({"backbone": vit, "data": str(colours), "method": method, "solver": SOLVED, **more})


@pytest.mark.parametrize("name", ["crt", "lws", "tau-norm", "la-posthoc", "temperature"])
def test_a_second_stage_changes_only_the_head(name, vit, colours, tuned, cache, tmp_path):
    solver = SOLVED if name == "crt" else {}
    method = {"name": name, "tau": 1.0} if name == "tau-norm" else {"name": name}  # 0 may be chosen
    done = run(second(vit, colours, tuned, method, solver=solver), cache=cache, out=tmp_path)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (done.folder, tuned.folder)]
    assert weights[0] == weights[1]
    heads, about = zip(*(fitted.load(folder) for folder in (done.folder, tuned.folder)), strict=True)
    assert about[0]["fingerprint"] == about[1]["fingerprint"] == done.result["backbone"]["fingerprint"]
    same = name == "la-posthoc"  # these classes have one size
    assert torch.allclose(heads[0].tensors["weight"], heads[1].tensors["weight"]) == same
    assert done.result["stage"]["first"] == tuned.folder.name
    assert done.result["stage"]["before"]["top1"] == pytest.approx(tuned.result["test"]["top1"])
    assert done.result["test"]["groups"].keys() == tuned.result["test"]["groups"].keys()
    assert [g["classes"] for g in done.result["test"]["groups"].values()] == [
        g["classes"] for g in tuned.result["test"]["groups"].values()
    ]
    norms = done.result["stage"]["weight_norms"]
    assert norms["after"] == pytest.approx(heads[0].tensors["weight"].norm(dim=1).tolist(), rel=1e-4)
    shown = next(iter(done.result["diagnostics"]["methods"].values()))["weight_norm_before"]  # on the page
    assert shown == pytest.approx(norms["before"], rel=1e-3)
    assert label(recipe.build(done.result["recipe"])).startswith(f"{name}(erm, first={tuned.folder.name}")


def test_a_second_run_gives_the_same_bits_and_predicts_new_images(vit, colours, tuned, cache, tmp_path):
    r = second(vit, colours, tuned, {"name": "crt"})
    one, two = (run(r, cache=cache, out=tmp_path / name) for name in ("one", "two"))
    heads = [(done.folder / "head.safetensors").read_bytes() for done in (one, two)]
    assert heads[0] == heads[1]
    mine = {key: values[:3] for key, values in predictions(one.folder, label(r)).items()}
    guesses = predict(one.folder, [colours / i for i in mine["id"]], top=1)
    assert [g["classes"][0]["probability"] for g in guesses] == pytest.approx(
        list(mine["probability"]), abs=1e-4
    )


def test_temperature_says_the_calibration_before_and_after(vit, colours, tuned, cache, tmp_path):
    r = second(vit, colours, tuned, {"name": "temperature"}, solver={})
    result = run(r, cache=cache, out=tmp_path).result
    (seed,) = result["seeds"]
    assert seed["temperature"] > 0
    assert seed["held_out"]["after"]["nll"] <= seed["held_out"]["before"]["nll"]
    block = result["stage"]["calibration"]
    assert {"ece", "nll"} == set(block["before"][0]) == set(block["after"][0])
    assert block["after"][0]["ece"] == pytest.approx(result["test"]["ece"], abs=1e-6)
    assert block["before"][0]["ece"] == pytest.approx(result["stage"]["before"]["ece"], abs=1e-6)
    assert result["stage"]["gain"]["overall"]["mean"] == 0
    assert any(said.startswith("temperature ") and "% after" in said for said in result["remarks"])
    assert any(said.startswith("overall against its first stage: ") for said in result["remarks"])


def test_a_first_stage_that_does_not_fit_is_refused_in_one_line(
    vit, colours, tuned, cache, tmp_path, monkeypatch
):
    def refused(says, **more):
        with pytest.raises(UserError, match=says) as caught:
            run(second(**{**known, **more}), cache=cache, out=tmp_path)
        assert "\n" not in str(caught.value)

    known = {"vit": vit, "colours": colours, "tuned": tuned, "method": {"name": "tau-norm"}, "solver": {}}
    refused("has the backbone", vit="effnet-lite0")
    refused("say data.val_fraction=0.2", data={"name": str(colours), "val_fraction": 0.3})
    refused("say first_seed=0", first_seed=1)
    refused("the first stage is a run, so a loss has no effect", method={"name": "lws", "loss": "la"})
    refused("crt: a second stage changes a finished head", method={"name": "crt"}, finetune=True)
    refused("settings without effect: solver.l2=1.0", solver=SOLVED)
    refused("settings without effect: select", select="hard")
    other = shutil.copytree(colours, tmp_path / "other")
    (other / "train" / "red" / "0.png").unlink(missing_ok=True)
    next((other / "train" / "red").iterdir()).unlink()
    refused("has learnt from other train images", colours=other)
    student = {"name": "gml", "teacher": str(tuned.folder)}
    content = {"backbone": vit, "data": str(other), "method": student, "finetune": True}
    with pytest.raises(UserError, match=r"method.teacher: .* has learnt from other train images"):
        run(recipe.build(content), cache=cache, out=tmp_path)
    last = recipe.build({**tuned.result["recipe"], "train": {"epochs": 1, "lr": 1e-3, "batch_size": 16}})
    whole = run(last, cache=cache, out=tmp_path / "whole")
    refused("has learnt from every training image, so none is left to choose tau", tuned=whole)
    absent = type(tuned)(tmp_path / "absent", {})
    refused("is not a run: it has no result.json", tuned=absent)


def test_a_stored_second_stage_is_stale_once_its_first_stage_is_another(vit, colours, tuned, cache, tmp_path):
    r = second(vit, colours, tuned, {"name": "crt"})
    done = run(r, cache=cache, out=tmp_path)
    assert Present(cache).change(r, done.result) is None
    changed = {**done.result, "backbone": {**done.result["backbone"], "fingerprint": "0" * 64}}
    assert "weights" in Present(cache).change(r, changed)


def test_jtt_and_second_stages_are_solved_without_a_run_too(vit, colours, cache, tmp_path):
    base = {"backbone": vit, "data": str(colours)}
    for method in ("jtt(errors=crossfit)", "tau-norm(mr2, tau=[0.5, 1])"):
        result = run(recipe.build({**base, "method": method}), cache=cache, out=tmp_path).result
        assert result["test"]["top1"] > 0.6
        assert ("stage" in result) == method.startswith("tau")
    assert result["stage"]["first"] is None
    for method, says in (("jtt(first_epochs=3)", "the exact solver has no epochs"),):
        with pytest.raises(UserError, match=says):
            run(recipe.build({**base, "method": method}), cache=cache, out=tmp_path)
    trained = {**base, "method": "jtt(errors=crossfit)", "solver": "sgd"}
    with pytest.raises(UserError, match="is for the exact solver"):
        run(recipe.build(trained), cache=cache, out=tmp_path)
