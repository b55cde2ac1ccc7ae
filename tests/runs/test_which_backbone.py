"""Backbones on the same images: the better one first, tested in pairs, with the groups of one of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from probe.cli import main
from probe.runs import compare
from probe.runs.folder import read_result
from probe.runs.pairing import paired
from probe.runs.table import in_groups, of_runs
from probe.runs.which_backbone import Entry, which_backbone
from tests.runs.test_compare import draw

SETTINGS = ["solver.l2=1", "backbone.image_size=64"]
COLOURS = {"red": (200, 60, 60), "rose": (195, 75, 80), "blue": (60, 60, 200)}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two backbones on three classes of noisy squares, and where the runs are."""
    root = tmp_path_factory.mktemp("backbones")
    rng = np.random.default_rng(0)
    draw(root / "squares" / "train", COLOURS, 8, rng)
    draw(root / "squares" / "test", COLOURS, 6, rng)
    words = ["compare", "--backbones", "effnet-lite0 effnet-lite1", "--data", str(root / "squares")]
    words += ["--methods", "erm mr2", *SETTINGS]
    words += ["--cache", str(root / "cache"), "--out", str(root / "runs")]
    answer = CliRunner().invoke(main, words, env={"PROBE_CACHE": str(root / "cache"), "COLUMNS": "80"})
    assert answer.exit_code == 0, answer.output
    (folder,) = (root / "runs").glob("compare-*")
    return root, json.loads((folder / "comparison.json").read_text()), answer.output


def test_the_difference_is_that_of_the_predictions_on_the_same_images(grid):
    root, comparison, output = grid
    (block,) = comparison["backbones"]
    assert block["method"] == "erm"
    accuracies = [row["overall"]["accuracy"] for row in block["backbones"]]
    assert accuracies == sorted(accuracies, reverse=True)
    (pair,) = block["pairs"]
    assert pair["gain"]["mean"] == pytest.approx(accuracies[0] - accuracies[1])
    found = paired([root / "runs" / row["run"] for row in block["backbones"]])
    first, second = (outcome.correct.mean() for outcome in found.outcomes)
    assert pair["gain"]["mean"] == pytest.approx(first - second)
    assert output.index("On squares, ") < output.index("backbone ")  # the headline before the table


def test_all_backbones_have_the_groups_of_the_first_and_it_is_said(grid):
    root, comparison, output = grid
    (said,) = comparison["shared_groups"].values()
    assert said == "groups of effnet-lite0, cross-fitted on training images, for every backbone"
    assert "groups of effnet-lite0" in " ".join(output.split())
    first = next(row for row in comparison["rows"] if row["backbone"] == "effnet-lite0")
    (hard,) = read_result(root / "runs" / first["run"])["test"]["groups"]["hard"]["classes"]
    for row in comparison["rows"]:
        result = read_result(root / "runs" / row["run"])
        (accuracy,) = (r["accuracy"] for r in result["test"]["by_class"] if r["name"] == hard)
        assert row["statistics"]["hard"]["accuracy"] == pytest.approx(accuracy)


def test_other_groups_change_the_gains_too(grid):
    root, comparison, _ = grid
    run = next(row["run"] for row in comparison["rows"] if row["method"] == "mr2")
    folder = root / "runs" / run
    result = read_result(folder)
    names = [row["name"] for row in result["test"]["by_class"]]
    for k, name in enumerate(names):
        others = [i for i in range(3) if i != k]
        found = in_groups(result, folder, {"easy": others, "hard": [k]}, "another")
        gain = next(row["mean"] for row in result["versus"]["by_class"] if row["name"] == name)
        assert found["versus"]["gain"]["hard"]["mean"] == pytest.approx(gain)
        assert found["groups_from"] == "another"


def test_groups_that_were_asked_for_are_kept(grid):
    """Only rankings that each backbone made for itself are replaced."""
    root = grid[0]
    plan = compare.Grid(["effnet-lite0", "effnet-lite1"], [str(root / "squares")], ["erm"], SETTINGS)
    cells = compare.fill(plan, cache=root / "cache", out=root / "runs")
    given = [replace(c, recipe=c.recipe.model_copy(update={"groups": "paper"})) for c in cells]
    assert compare.table(given)["shared_groups"] == {}
    assert list(compare.table(cells)["shared_groups"]) == [str(root / "squares")]


def test_runs_named_by_their_folders_are_compared_too_and_one_backbone_is_no_choice(grid):
    root, comparison, _ = grid
    erm = [root / "runs" / row["run"] for row in comparison["rows"] if row["method"] == "erm"]
    assert [len(block["pairs"]) for block in of_runs(erm)["backbones"]] == [1]
    rows = [row for row in comparison["rows"] if row["backbone"] == "effnet-lite0"]
    assert which_backbone([Entry(root / "runs" / row["run"], row) for row in rows], "erm") == []
