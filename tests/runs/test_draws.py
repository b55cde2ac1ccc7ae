"""Few-shot runs: a seed is another draw of training images, unless there is one seed only."""

from __future__ import annotations

import numpy as np
import pytest

from probe import data, recipe
from probe.runs import draws
from probe.runs.run import run
from tests.support.training_world import tiny_vit

SETTINGS = {"epochs": 1, "batch_size": 4, "lr": 0.01}
TASKS = {
    "probe": {"solver": {"l2": 1.0}},
    "validated": {},
    "sgd": {"solver": {"name": "sgd", "l2": 1.0}, "train": SETTINGS},
    "fine-tuning": {"finetune": True, "train": SETTINGS},
}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


def built(vit, colours, task, **given):
    backbone = {"name": f"timm:{vit}", "image_size": 32}
    return recipe.build({"backbone": backbone, "method": "erm", **TASKS[task], **given})


@pytest.mark.parametrize("task", TASKS)
def test_seeds_of_a_few_shot_run_are_the_runs_of_its_draws(task, vit, colours, cache, tmp_path):
    name = {"name": str(colours), "shots": 3}
    both = run(built(vit, colours, task, data=name, seeds=2), cache=cache, out=tmp_path)
    assert [row["draw"] for row in both.result["data"]["draws"]] == [0, 1]
    prints = [data.load(colours, shots=3, draw=d)["train"].fingerprint for d in (0, 1)]
    assert [row["train"] for row in both.result["data"]["draws"]] == prints
    assert prints[0] != prints[1]
    assert any("draws 0 to 1" in line for line in both.result["remarks"])
    assert not any("depends on the seed" in line for line in both.result["remarks"])
    assert len(set(both.result["data"]["validation"]["digests"])) == 2
    alone = run(built(vit, colours, task, data=name), cache=cache, out=tmp_path)
    assert np.array_equal(both.predictions[0].true_probability, alone.predictions[0].true_probability)
    assert "draws" not in alone.result["data"]
    if task == "probe":  # where the seed acts through the draw alone
        other = run(built(vit, colours, task, data={**name, "draw": 1}), cache=cache, out=tmp_path)
        assert np.array_equal(both.predictions[1].true_probability, other.predictions[0].true_probability)
    else:
        assert not np.array_equal(both.predictions[1].probability, both.predictions[0].probability)


def test_draws_follow_the_one_that_is_named_and_other_runs_have_none(vit, colours):
    few = built(vit, colours, "probe", data={"name": str(colours), "shots": 3, "draw": 4}, seeds=3)
    assert [r.data.draw for r in draws.further(few)] == [5, 6]
    assert draws.further(built(vit, colours, "probe", data=str(colours), seeds=3)) == []
