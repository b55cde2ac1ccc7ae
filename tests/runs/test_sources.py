"""Equal images give equal heads and networks, wherever they are read: sources x (probe, SGD, fine-tuning)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from probe import data, recipe
from probe.runs.inputs import gather
from probe.runs.run import fit
from probe.runs.strategy import choose
from tests.support.layouts import LAYOUTS, load
from tests.support.training_world import tiny_vit

SETTINGS = {"epochs": 1, "batch_size": 4, "lr": 1e-3}
TASKS = {
    "probe": {"solver": {"l2": 1.0}},
    "sgd": {"solver": {"name": "sgd", "l2": 1.0}, "train": SETTINGS},
    "fine-tuning": {"finetune": True, "train": SETTINGS},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A backbone, a cache, and the scores of every task on the flat folder."""
    root = tmp_path_factory.mktemp("world")
    (root / "vit").mkdir()
    tiny_vit(root / "vit")
    flat = load("flat folder", root / "flat")
    expected = {task: scores(task, flat, root, root / "work" / task) for task in TASKS}
    return root, flat["test"].digests, expected


def content(task, root, name="data"):
    backbone = {"name": f"timm:{root / 'vit'}", "image_size": 32}
    return {"backbone": backbone, "data": name, "method": "erm", **TASKS[task]}


def scores(task, found: data.Dataset, root, work) -> torch.Tensor:
    """N x K scores of the test images, in an order that no source decides."""
    r = recipe.build(content(task, root))
    inputs = gather(r, cache=root / "cache", data=found)
    made = fit(choose(r), inputs, None, work).fitted.scores[0]
    return made[torch.from_numpy(found["test"].digests[:, 0].argsort(kind="stable"))]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("flat folder", "in memory")])
def test_equal_images_give_equal_results(layout, task, world, tmp_path):
    root, digests, expected = world
    found = load(layout, tmp_path / "data")
    assert sorted(found["test"].digests.tolist()) == sorted(digests.tolist())
    assert torch.equal(scores(task, found, root, tmp_path / "work"), expected[task])


@pytest.mark.parametrize("task", TASKS)
def test_data_in_memory_is_learnt_from_like_any_other(task, world, tmp_path):
    found = load("in memory", tmp_path)
    assert scores(task, found, world[0], tmp_path / "work").shape == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["flat folder", "parquet", "save_to_disk"])
def test_two_processes_fine_tune_on_every_kind_of_source(layout, world, tmp_path):
    root = world[0]
    path = LAYOUTS[layout](tmp_path / "data")
    (tmp_path / "recipe.yaml").write_text(recipe.build(content("fine-tuning", root, str(path))).to_yaml())
    results = []
    for processes in ("1", "2"):
        words = ["run", str(tmp_path / "recipe.yaml"), "--gpus", processes, "--cache", str(root / "cache")]
        command = [sys.executable, "-m", "probe.cli", *words, "--out", str(tmp_path / processes), "--json"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(json.loads(done.stdout))
    one, two = results
    assert one["data"]["test_cut"] == two["data"]["test_cut"]
    assert one["test"]["top1"] == two["test"]["top1"]
    assert one["seeds"][0]["epochs"][-1]["loss"] == pytest.approx(
        two["seeds"][0]["epochs"][-1]["loss"], rel=1e-4
    )
