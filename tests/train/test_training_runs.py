"""`probe run --solver sgd`, `--finetune` and `--gpus 2`: from words to a run folder that predicts."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from probe import recipe
from probe.errors import UserError
from probe.runs.naming import slug
from probe.runs.predict import predict
from probe.runs.run import run
from tests.support.stored_runs import accuracy, predictions
from tests.support.training_world import tiny_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


def content(vit, colours, **more):
    backbone = {"name": f"timm:{vit}", "image_size": 32}
    settings = {"epochs": 2, "batch_size": 16, "lr": 1e-3}
    base = {"backbone": backbone, "data": str(colours), "method": "mr2", "solver": {"l2": 1.0}}
    return {**base, **more, "train": {**settings, **more.get("train", {})}}


def test_sgd_probing_writes_a_whole_run(vit, colours, cache, tmp_path):
    r = recipe.build(content(vit, colours, solver={"name": "sgd", "l2": 1.0}, train={"lr": 1.0}, seeds=2))
    done = run(r, cache=cache, out=tmp_path)
    assert done.result["versus"]["method"] == "erm"
    assert [row["epochs"] for row in done.result["seeds"]] == [2, 2]
    assert len(done.result["margins"]["by_class"]) == 4
    lines = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
    assert {line["seed"] for line in lines} == {0, 1}
    assert accuracy(done.folder, "mr2-sgd") == done.result["test"]["top1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [slug(r)]


def test_fine_tuning_writes_the_tuned_weights_and_predicts_with_them(vit, colours, cache, tmp_path):
    r = recipe.build(content(vit, colours, finetune=True, train={"start": "probe"}))
    done = run(r, cache=cache, out=tmp_path)
    assert (done.folder / "model.safetensors").exists()
    mine = {name: values[:6] for name, values in predictions(done.folder, "mr2-finetune").items()}
    names = json.loads(pq.read_schema(done.folder / "predictions.parquet").metadata[b"class_names"])
    guesses = predict(done.folder, [colours / i for i in mine["id"]], top=1)
    assert [g["classes"][0]["name"] for g in guesses] == [names[k] for k in mine["prediction"]]
    assert np.allclose([g["classes"][0]["probability"] for g in guesses], mine["probability"], atol=1e-4)
    history = done.result["margins"]["history"]
    assert history[0]["step"] == 0
    assert len(history) > 2
    assert {len(point["gamma"]) for point in history} == {len(names)}
    assert 'id="chart-margin-history"' in (done.folder / "report.html").read_text()


def test_methods_that_are_more_than_a_loss_name_the_way_to_run_them(vit, colours, cache, tmp_path):
    with pytest.raises(UserError, match="sam must be trained: use --solver sgd, or --finetune"):
        run(recipe.build(content(vit, colours, method="sam")), cache=cache, out=tmp_path)
    with pytest.raises(UserError, match=r"supcon has no effect on frozen features.*train.head=adapter"):
        run(recipe.build(content(vit, colours, method="supcon", solver="sgd")), cache=cache, out=tmp_path)
    r = recipe.build(
        content(vit, colours, method={"name": "sam", "loss": "mr2"}, solver={"name": "sgd", "l2": 1.0})
    )
    assert run(r, cache=cache, out=tmp_path).result["test"]["top1"] > 0.4


def test_two_processes_write_one_run_equal_to_one_process(vit, colours, cache, tmp_path):
    r = content(vit, colours, finetune=True, method="erm", train={"clip": 1.0})
    (tmp_path / "recipe.yaml").write_text(recipe.build(r).to_yaml())
    words = ["run", str(tmp_path / "recipe.yaml"), "--gpus", "2", "--cache", str(cache)]
    command = [sys.executable, "-m", "probe.cli", *words, "--out", str(tmp_path / "two"), "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    two = json.loads(done.stdout)
    one = run(recipe.build(r), cache=cache, out=tmp_path / "one").result
    assert two["test"]["top1"] == one["test"]["top1"]
    for a, b in zip(one["seeds"][0]["epochs"], two["seeds"][0]["epochs"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)


def test_a_backbone_that_moved_while_it_was_probed_is_noticed(vit):
    from probe.runs.metadata import unmoved

    backbone = tiny_vit(vit)
    assert unmoved(backbone) == backbone.fingerprint
    next(backbone.parameters()).data.add_(1e-3)
    with pytest.raises(RuntimeError, match="should have been frozen"):
        unmoved(backbone)


def test_trackers_write_into_the_run_folder_and_nowhere_else(vit, colours, cache, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    train = {"lr": 1.0, "trackers": ["tensorboard"]}
    r = recipe.build(content(vit, colours, solver={"name": "sgd", "l2": 1.0}, train=train, seeds=2))
    done = run(r, cache=cache, out=tmp_path / "runs")
    assert list(elsewhere.iterdir()) == []
    for seed in (0, 1):
        found = EventAccumulator(str(done.folder / "tracking" / f"seed-{seed}" / "probe")).Reload()
        lines = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if line["seed"] == seed and "lr" in line]
        assert np.allclose([event.value for event in found.Scalars("loss")], losses, rtol=1e-5)
        assert len(found.Scalars("epoch/loss")) == 2


def test_extraction_is_shared_by_two_processes(vit, colours, tmp_path):
    command = ["-m", "probe.cli", "extract", "--gpus", "2", "--backbone", f"timm:{vit}", "--image-size", "32"]
    command += ["--data", str(colours), "--cache", str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["train", "test"]
