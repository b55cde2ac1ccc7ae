"""A table of a paper is one command: rows are run once, and stand beside the published numbers."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from probe.cli import main
from probe.errors import UserError
from probe.evaluation.groups import thirds
from probe.recipe import build, library
from probe.runs.compare import Cell
from probe.runs.folder import read_result
from probe.runs.recipe_rows import RecipeRows
from tests.runs.test_compare import draw

TABLE = """
paper: Somebody et al., A paper, 2020
table: 1a
title: squares
columns: [overall, easy, medium, hard, worst]
ours: [seeds]
settings:
  backbone: {{name: effnet-lite0, image_size: 32}}
  data: {data}
  groups: paper
  seeds: 2
  solver: {{l2: 1}}
rows:
- {{name: erm, title: ERM, published: [70.9, 84.5, 71.0, 56.7, 50.0]}}
- {{name: mr2, title: MR², method: mr2(power=1), published: [73.9, 85.9, 73.8, 61.9, null]}}
- name: sgd
  title: by SGD
  method: mr2
  settings: {{solver: {{name: sgd}}, train: {{epochs: 2, lr: 0.1}}}}
- {{name: later, title: Later, method: later, published: [74.0, 86.0, 74.0, 62.0, 51.0]}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table of three rows and a fourth whose method nobody has, on three classes of noisy squares."""
    root, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    colours = {"red": (200, 60, 60), "rose": (200, 80, 80), "blue": (60, 60, 200)}
    draw(root / "squares" / "train", colours, 8, rng)
    draw(root / "squares" / "test", colours, 6, rng)
    (root / "paper.yaml").write_text(TABLE.format(data=root / "squares"))
    words = ["compare", "--recipes", str(root / "paper.yaml")]
    words += ["--cache", str(root / "cache"), "--out", str(root / "runs")]
    answer = CliRunner().invoke(main, words, env={"COLUMNS": "80"})
    assert answer.exit_code == 0, answer.output
    (folder,) = (root / "runs").glob("compare-*")
    return root, words, answer.output, json.loads((folder / "comparison.json").read_text())


def rows_of(comparison):
    (table,) = comparison["tables"]
    return {row["row"]: row for row in table["rows"]}


def test_the_table_stands_beside_the_published_numbers(place):
    root, _, output, comparison = place
    (table,) = comparison["tables"]
    assert (table["paper"], table["table"], table["title"]) == (
        "Somebody et al., A paper, 2020",
        "1a",
        "squares",
    )
    assert table["columns"] == ["overall", "easy", "medium", "hard", "worst"]
    erm = rows_of(comparison)["erm"]
    result = read_result(root / "runs" / erm["run"])
    overall = erm["statistics"]["overall"]
    assert overall["accuracy"] == result["test"]["top1"]
    assert overall["published"] == pytest.approx(0.709)
    assert overall["difference"]["mean"] == pytest.approx(result["test"]["top1"] - 0.709)
    assert overall["difference"]["ci"] == pytest.approx([end - 0.709 for end in result["test"]["ci"]])
    assert erm["statistics"]["worst"]["accuracy"] == result["test"]["worst"]["accuracy"]
    assert rows_of(comparison)["mr2"]["statistics"]["worst"]["published"] is None
    for said in (
        "table 1a: squares",
        "published",
        "70.9",
        "difference",
        "95 %",
        "no source states, ours: seeds",
    ):
        assert said in output


def test_every_file_of_the_comparison_has_the_published_numbers(place):
    (folder,) = (place[0] / "runs").glob("compare-*")
    assert "Beside the published numbers" in (folder / "comparison.html").read_text(encoding="utf-8")
    text = (folder / "comparison.md").read_text(encoding="utf-8")
    assert "| ERM | published | 70.9 | 84.5 | 71.0 | 56.7 | 50.0 |" in text
    text = (folder / "comparison.tex").read_text(encoding="utf-8")
    assert r"ERM & published & 70.9 & 84.5 & 71.0 & 56.7 & 50.0 \\" in text
    with (folder / "comparison.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] and line["method"] == "ERM"]
    assert [float(line["published"]) for line in lines] == pytest.approx([0.709, 0.845, 0.71, 0.567, 0.5])


def test_no_line_is_longer_than_the_terminal_and_no_number_is_cut(place):
    *lines, saved = place[2].splitlines()
    assert saved.startswith("saved: ")
    assert max(map(len, lines)) <= 80 or "paper.yaml" in max(lines, key=len)
    assert "…" not in place[2]
    for row in place[3]["tables"][0]["rows"]:
        for statistic in row["statistics"].values():
            if statistic["published"] is not None:
                assert f"{100 * statistic['published']:.1f}" in place[2]


def test_a_row_that_cannot_be_run_says_why_and_the_rest_is_run(place):
    _, _, output, comparison = place
    later = rows_of(comparison)["later"]
    assert later["why_not"] == 'there is no method "later"'
    assert later["statistics"]["hard"] == {
        "accuracy": None,
        "ci": None,
        "gain": None,
        "published": 0.62,
        "difference": None,
    }
    assert 'Later: not available: there is no method "later"' in output
    assert comparison["failed"] == []


def test_a_training_is_compared_with_erm_trained_alike_and_a_probe_with_the_probe(place):
    root, _, _, comparison = place
    rows = rows_of(comparison)
    assert (rows["erm"]["against"], rows["mr2"]["against"], rows["sgd"]["against"]) == (
        None,
        "erm",
        "erm-sgd",
    )
    runs = {row["method"]: read_result(root / "runs" / row["run"]) for row in comparison["rows"]}
    assert set(runs) == {"erm", "mr2", "erm-sgd", "sgd"}  # the erm that sgd needs is run too
    gain = rows["sgd"]["statistics"]["overall"]["gain"]["mean"]
    assert gain == pytest.approx(runs["sgd"]["test"]["top1"] - runs["erm-sgd"]["test"]["top1"])


def test_groups_are_those_of_the_reference_by_its_test_accuracy(place):
    root, _, _, comparison = place
    by_run = {row["method"]: row["run"] for row in comparison["rows"]}
    classes = read_result(root / "runs" / by_run["erm-sgd"])["test"]["by_class"]
    own = {row["name"]: row for row in read_result(root / "runs" / by_run["sgd"])["test"]["by_class"]}
    hard = thirds(np.array([row["accuracy"] for row in classes]))["hard"]
    expected = np.mean([own[classes[k]["name"]]["accuracy"] for k in hard])
    assert rows_of(comparison)["sgd"]["statistics"]["hard"]["accuracy"] == pytest.approx(expected)
    assert any("flatters any rival" in remark for remark in comparison["remarks"])


def test_a_table_is_run_once(place, monkeypatch):
    def refuse(recipe, **places):
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr("probe.runs.run.run", refuse)
    answer = CliRunner().invoke(main, [*place[1], "--json"])
    assert answer.exit_code == 0, answer.output
    again = json.loads(answer.stdout)
    assert again["tables"] == place[3]["tables"]
    assert not any("not the table's own settings" in remark for remark in again["remarks"])
    assert all(row["reused"] for row in again["rows"])


def test_one_row_is_run_by_name_and_overrides_act_on_all(place):
    root = place[0]
    assert build(library.content(f"{root}/paper.yaml/mr2")).method.params == {"power": 1}
    rows = RecipeRows.named([f"{root}/paper.yaml"], ["seeds=1", "solver.l2=2"], root)
    assert {(r.seeds, r.solver.l2) for r in rows.recipes()} == {(1, 2.0)}
    said = rows.table([Cell(r, root, None, error="it broke") for r in rows.recipes()])
    assert "not the table's own settings: seeds=1, solver.l2=2" in said["remarks"]
    assert [row["error"] for row in said["tables"][0]["rows"]] == ["it broke"] * 3 + [None]
    one = RecipeRows.named([f"{root}/paper.yaml/sgd"], [], root)
    assert [r.method.name for r in one.recipes()] == ["erm", "mr2"]  # and the erm that it is compared with


def test_rows_may_name_what_they_are_compared_with_and_what_ranks_their_classes(tmp_path):
    (tmp_path / "t.yaml").write_text(
        "paper: P\ntable: 3\ntitle: T\ncolumns: [overall]\nagainst: plain\ngroups_from: plain\n"
        "variants: {a: {settings: {seeds: 2}}, b: {settings: {seeds: 3}}}\n"
        "rows:\n- {name: plain}\n- {name: knn, settings: {solver: knn}}\n"
    )
    planned = {p.row.row: p for p in RecipeRows.named([str(tmp_path / "t.yaml")], [], tmp_path).planned}
    assert set(planned) == {"plain-a", "knn-a", "plain-b", "knn-b"}
    assert planned["knn-b"].reference.digest == planned["plain-b"].recipe.digest
    assert planned["knn-b"].ranks.digest == planned["plain-b"].recipe.digest
    assert planned["plain-b"].reference is None
    one = RecipeRows.named([str(tmp_path / "t.yaml" / "knn-a")], [], tmp_path)
    assert [r.solver.name for r in one.recipes()] == ["lbfgs", "knn"]


def test_second_stages_start_from_the_run_of_the_row_before(tmp_path, monkeypatch):
    (tmp_path / "t.yaml").write_text(
        "paper: P\ntable: 3\ntitle: T\ncolumns: [overall]\nsettings: {solver: sgd}\n"
        "rows:\n- {name: first}\n- {name: second, method: jtt, uses: {first: first}}\n"
    )
    monkeypatch.setattr("probe.runs.availability._method", lambda method: None)
    first, second = RecipeRows.named([str(tmp_path / "t.yaml")], [], tmp_path / "runs").planned
    from probe.runs.naming import slug

    assert second.recipe.method.params == {"first": str(tmp_path / "runs" / slug(first.recipe))}
    (alone,) = RecipeRows.named([str(tmp_path / "t.yaml" / "second")], [], tmp_path / "runs").planned
    assert alone.runs[0].digest == first.recipe.digest  # which is run before it


def test_settings_of_a_training_are_not_for_second_stages_which_train_nothing(tmp_path):
    named = RecipeRows.named(["elm/table2-cifar10-lt"], ["train.warmup_epochs=3", "seeds=1"], tmp_path)
    planned = {p.row.row: p for p in named.planned}
    assert planned["ce"].recipe.train.warmup_epochs == 3
    assert planned["weight-norm"].recipe.train == build({}).train
    assert planned["weight-norm"].recipe.seeds == 1
    assert planned["weight-norm"].uses[0].digest == planned["ce"].recipe.digest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--recipes", "mr2/pets", "--methods", "erm"], "not both"),
        (["--recipes", "mr2/table1-cifar100", "train.epoch=3"], 'unknown key "train.epoch"'),
        (["--recipes", "mr2/table1-cifar100/erm", "data=nonsense"], 'unknown data set "nonsense"'),
        (["--recipes", "mr2/table1-cifar100/fairdr"], 'no row "fairdr"; did you mean "fairdro"'),
        (["--recipes", "mr2/table1-cifar10"], 'did you mean "mr2/table1-cifar100"'),
        (["--recipes", "mr2/pets", "versus=same"], "leave versus out"),
    ],
)
def test_a_wrong_request_is_one_line(words, says, tmp_path):
    answer = CliRunner().invoke(main, ["compare", *words, "--out", str(tmp_path)])
    assert answer.exit_code == 2
    assert says in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_methods_of_a_grid_take_parameters():
    """Spaces and commas inside brackets belong to the method."""
    from probe.recipe import grammar
    from probe.runs.compare import Grid
    from probe.runs.naming import method

    written = ["mr2 mr2(lam=0.01) dbm(margin=0.2,tau=0.5)", "drw(ldam, after=0.7) la(tau=[0, 1])"]
    grid = Grid(["effnet-lite0"], ["digits"], grammar.listed(written), ["solver=sgd"])
    named = [method(recipe) for recipe in grid.recipes()]
    assert named[1:] == [
        "mr2",
        "mr2(lam=0.01)",
        "dbm(margin=0.2, tau=0.5)",
        "drw(ldam, after=0.7)",
        "la(tau=[0, 1])",
    ]
    with pytest.raises(UserError, match="grid is empty"):
        Grid([], ["digits"], ["erm"]).recipes()
