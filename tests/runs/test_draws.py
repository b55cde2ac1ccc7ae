"""Few-shot runs: a seed is another draw of training images, unless there is one seed only."""

from __future__ import annotations

import numpy as np
import pytest

from probe import data, recipe
from probe.runs import draws
from probe.runs.folder import RunFolder
from probe.runs.run import run
from probe.runs.staleness import Present
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


@pytest.mark.parametrize("task", ["validated", "sgd", "fine-tuning"])
@pytest.mark.parametrize("few", [{}, {"shots": 3}])
def test_seeds_can_be_run_apart(few, task, vit, colours, cache, tmp_path):
    name = {"name": str(colours), **few}
    both = run(built(vit, colours, task, data=name, seeds=2), cache=cache, out=tmp_path)
    later = run(built(vit, colours, task, data=name, first_seed=1), cache=cache, out=tmp_path)
    first, second, again = (p.true_probability for p in (*both.predictions, *later.predictions))
    digests = both.result["data"]["validation"]["digests"]
    assert digests[0] != digests[1] == later.result["data"]["validation"]["digests"][0]
    assert np.allclose(again, second, atol=5e-3)  # exact heads start elsewhere, so their last digits differ
    if task != "validated":  # where seeds may choose the same l2
        assert np.abs(again - second).max() < 0.1 * np.abs(again - first).max()
    if few:
        drawn = [row["train"] for row in both.result["data"]["draws"]]
        assert later.result["data"]["fingerprints"]["train"] == drawn[1] != drawn[0]
        assert Present(cache).change(recipe.build(later.result["recipe"]), later.result) is None


def test_the_images_of_every_draw_were_learnt_from(vit, colours, cache, tmp_path):
    name = {"name": str(colours), "shots": 3}
    both = run(built(vit, colours, "probe", data=name, seeds=2), cache=cache, out=tmp_path)
    drawn = [data.load(colours, shots=3, draw=d)["train"].digests for d in (0, 1)]
    expected = {row.tobytes() for part in drawn for row in part}
    found = RunFolder(both.folder).training_images()
    assert len(found) == len(expected) > len(drawn[0])
    assert {row.tobytes() for row in found} == expected


def test_a_few_shot_run_of_the_same_draw_for_all_seeds_is_stale(vit, colours, cache, tmp_path):
    few = built(vit, colours, "probe", data={"name": str(colours), "shots": 3}, seeds=2)
    result, present = run(few, cache=cache, out=tmp_path).result, Present(cache)
    assert present.change(few, result) is None
    about = result["data"]
    older = {**result, "data": {key: value for key, value in about.items() if key != "draws"}}
    assert present.change(few, older) == "an earlier version gave all seeds the same draw of images"
    rows = [about["draws"][0], {**about["draws"][1], "train": "other images"}]
    other = {**result, "data": {**about, "draws": rows}}
    assert present.change(few, other) == f'the train images of "{colours}" have changed'
    one = built(vit, colours, "probe", data={"name": str(colours), "shots": 3})
    assert present.change(one, older) is None


def test_draws_follow_the_one_that_is_named_and_other_runs_have_none(vit, colours):
    few = built(vit, colours, "probe", data={"name": str(colours), "shots": 3, "draw": 4}, seeds=3)
    assert [r.data.draw for r in draws.further(few)] == [5, 6]
    assert draws.further(built(vit, colours, "probe", data=str(colours), seeds=3)) == []
