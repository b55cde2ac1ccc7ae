"""`data.real_labels`: a run reports what its predictions are worth by several right answers."""

import json

import pytest

from probe import data, recipe
from probe.errors import UserError
from probe.runs.run import run

SMALL = {"name": "effnet-lite0", "image_size": 32}


def test_a_run_reports_the_accuracy_by_several_right_answers_beside_its_own(colours, cache, tmp_path):
    test = data.load(str(colours))["test"]
    known = {name: [int(label)] for name, label in zip(test.ids, test.labels, strict=True)}
    known[test.ids[0]] = []
    known[test.ids[1]] = [0, 1, 2, 3]
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(known))
    content = {"backbone": SMALL, "method": "mr2", "solver": {"l2": 1.0}}
    r = recipe.build({**content, "data": {"name": str(colours), "real_labels": str(file)}})
    result = run(r, cache=cache, out=tmp_path / "runs").result
    real, plain = result["real"], result["test"]
    assert (real["images"], real["left_out"]) == (len(test) - 1, 1)
    assert real["test"]["top1"] >= (plain["top1"] * len(test) - 1) / (len(test) - 1)
    assert set(real["versus"]["gain"]) == set(result["versus"]["gain"])
    assert any("several right answers (labels.json)" in line for line in result["remarks"])
    assert (
        "real" not in run(recipe.build({**content, "data": str(colours)}), cache=cache, out=tmp_path).result
    )


def test_labels_of_other_images_are_refused_before_anything_is_computed(colours, cache, tmp_path):
    file = tmp_path / "labels.json"
    file.write_text("[[1]]")
    r = recipe.build({"backbone": SMALL, "data": {"name": str(colours), "real_labels": str(file)}})
    with pytest.raises(UserError, match="has no labels of the test image"):
        run(r, cache=cache, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
