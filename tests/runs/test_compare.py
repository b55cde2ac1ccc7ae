"""A grid is run once, reused afterwards, and survives what fails in it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from probe.cli import main
from probe.errors import UserError
from probe.recipe import build
from probe.runs import compare
from probe.runs.folder import read_result
from probe.runs.staleness import Present
from probe.runs.table import of_runs

NONE = {"train_test": {"count": 0}, "two_labels": {"count": 0}, "within": {"count": 0}}


def draw(folder, colours, each, rng):
    """Noisy squares of each class's colour."""
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for i in range(each):
            noise = rng.integers(-60, 60, size=(16, 16, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny data set of three classes, a cache and a place for runs; three runs, one of which cannot be."""
    root = tmp_path_factory.mktemp("grid")
    rng = np.random.default_rng(0)
    colours = {"red": (200, 60, 60), "rose": (200, 80, 80), "blue": (60, 60, 200)}
    draw(root / "squares" / "train", colours, 8, rng)
    draw(root / "squares" / "test", colours, 6, rng)
    words = [
        "compare",
        "--backbones",
        "effnet-lite0",
        "--data",
        str(root / "squares"),
        "--methods",
        "erm mr2 supcon",
    ]
    words += ["--seeds", "2", "--cache", str(root / "cache"), "--out", str(root / "runs")]
    answer = CliRunner().invoke(main, words, env={"PROBE_CACHE": str(root / "cache"), "COLUMNS": "80"})
    return root, words, answer


def comparison_of(root):
    (folder,) = (root / "runs").glob("compare-*")
    return folder, json.loads((folder / "comparison.json").read_text())


def test_identical_images_of_a_data_set_are_said_once(place):
    """As in the tables of its runs."""
    root, _, _ = place
    cells = [
        compare.Cell(build({"method": m}), root, {"data": {"duplicates": {**NONE, "within": {"count": 3}}}})
        for m in ("erm", "mr2")
    ]
    (said,) = compare._identical_images(cells)
    assert said.startswith("digits: identical images: 3 repeated within a split")


def test_a_method_without_an_exact_solver_is_trained_beside_those_that_have_one():
    grid = compare.Grid(["effnet-lite0"], ["digits"], ["erm", "arcface", "crt", "sam", "center"])
    solvers = {
        r.method.name: r.solver.name
        for r in grid.recipes()
        if r.solver.name != "sgd" or r.method.name != "erm"
    }
    assert solvers == {"erm": "lbfgs", "arcface": "sgd", "crt": "lbfgs", "sam": "sgd", "center": "lbfgs"}
    ranged = compare.Grid(["effnet-lite0"], ["digits"], ["mr2(power=[0, 1])", "arcface(margin=[0.1, 0.5])"])
    assert {r.method.name: r.solver.name for r in ranged.recipes() if r.method.name != "erm"} == {
        "mr2": "lbfgs",
        "arcface": "sgd",
    }
    given = compare.Grid(["effnet-lite0"], ["digits"], ["arcface"], ["solver.name=lbfgs"])
    assert [r.solver.name for r in given.recipes()] == ["lbfgs"]  # and is refused when it is run


def test_a_failure_is_listed_and_the_rest_is_compared(place):
    root, _, answer = place
    assert answer.exit_code == 1, answer.output
    _, comparison = comparison_of(root)
    assert [row["method"] for row in comparison["rows"]] == ["erm", "mr2"]
    (failed,) = comparison["failed"]
    assert failed["method"] == "supcon"
    assert "no effect on frozen features" in failed["error"]
    assert "failed:" in answer.output
    assert "Traceback" not in answer.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "/no/such/folder"], "there is no folder /no/such/folder; check the path"),
        (["--backbones", "effnet-lite9", "--data", "digits"], 'no backbone "effnet-lite9"'),
    ],
)
def test_a_mistake_of_every_run_is_one_line(tmp_path, words, said):
    answer = CliRunner().invoke(main, ["compare", *words, "--methods", "erm la", "--out", str(tmp_path)])
    assert answer.exit_code == 2
    (line,) = [line for line in answer.output.splitlines() if line.strip() and "comparing" not in line]
    assert said in line
    assert not list(tmp_path.glob("compare-*"))


def test_the_table_shows_what_the_runs_found(place):
    root, _, answer = place
    _, comparison = comparison_of(root)
    erm, mr2 = comparison["rows"]
    result = read_result(root / "runs" / mr2["run"])
    assert mr2["statistics"]["hard"]["accuracy"] == result["test"]["groups"]["hard"]["accuracy"]
    assert mr2["statistics"]["hard"]["gain"]["mean"] == result["versus"]["gain"]["hard"]["mean"]
    assert erm["statistics"]["overall"]["gain"] is None
    assert mr2["seeds"] == 2
    assert "mr2" in answer.output


def test_every_form_is_written_and_every_chart_on_request(place):
    folder, comparison = comparison_of(place[0])
    assert sorted(p.suffix for p in folder.iterdir()) == [".csv", ".html", ".json", ".md", ".tex"]
    compare.save(comparison, place[0] / "drawn", plots=True)
    drawn = {p.name for p in (place[0] / "drawn" / "plots").iterdir()}
    assert drawn == {"hard-gains.svg", "hard-gains.png"}
    other = [{**row, "data": "another"} for row in comparison["rows"]]  # improvements are between data sets
    compare.save({**comparison, "rows": [*comparison["rows"], *other]}, place[0] / "both", plots=True)
    drawn = {p.stem for p in (place[0] / "both" / "plots").iterdir()}
    assert drawn == {"hard-gains", "relative-improvement"}


def test_what_exists_is_reused_and_what_is_damaged_is_run_again(place, monkeypatch):
    root, words, _ = place
    ran = []
    real = __import__("probe.runs.run", fromlist=["run"]).run

    def watched(recipe, **places):
        ran.append(recipe.method.name)
        return real(recipe, **places)

    monkeypatch.setattr("probe.runs.run.run", watched)
    CliRunner().invoke(main, words, env={"PROBE_CACHE": str(root / "cache")})
    assert ran == ["supcon"]  # the failed one is tried again
    (broken,) = (root / "runs").glob("*-mr2-*")
    (broken / "result.json").write_text("{")
    CliRunner().invoke(main, words, env={"PROBE_CACHE": str(root / "cache")})
    assert ran == ["supcon", "mr2", "supcon"]


@pytest.fixture
def small_grid(tmp_path):
    """Two classes, one cheap run, and what filling it again says."""
    draw(
        tmp_path / "data" / "train",
        {"red": (200, 60, 60), "blue": (60, 60, 200)},
        4,
        np.random.default_rng(1),
    )
    draw(
        tmp_path / "data" / "test", {"red": (200, 60, 60), "blue": (60, 60, 200)}, 3, np.random.default_rng(2)
    )
    settings = ["solver.l2=1", "backbone.image_size=32"]

    def fill(*more):
        grid = compare.Grid(["effnet-lite0"], [str(tmp_path / "data")], ["erm"], [*settings, *more])
        return compare.fill(grid, cache=tmp_path / "cache", out=tmp_path / "runs")

    return tmp_path, fill


def test_a_run_is_stale_when_its_images_changed_under_the_same_path(small_grid, capsys):
    root, fill = small_grid
    before = fill()[0].result
    assert fill()[0].reused
    assert capsys.readouterr().err == ""
    Image.new("RGB", (16, 16), (250, 250, 0)).save(root / "data" / "test" / "red" / "0.png")
    (again,) = fill()
    said = capsys.readouterr().err
    assert not again.reused
    assert again.result["data"]["fingerprints"]["test"] != before["data"]["fingerprints"]["test"]
    assert "is stale, so it is run again: the test images of" in said
    assert said.count("\n") == 1
    assert fill()[0].reused


def test_a_run_is_stale_when_its_weights_or_its_groups_are_others_now(place):
    root = place[0]
    _, mr2 = folders(root)
    result, present = read_result(mr2), Present(root / "cache")
    recipe = build(result["recipe"])
    assert present.change(recipe, result) is None
    other = {**result, "backbone": {**result["backbone"], "fingerprint": "of other weights"}}
    assert present.change(recipe, other) == "the weights of effnet-lite0 have changed"
    older = {key: value for key, value in result.items() if key != "method_versions"}
    assert present.change(recipe, older) == "mr2 has another meaning now than when it was stored"
    assert present.change(recipe.plain, older) is None
    file = root / "own-groups.json"
    groups = {name: group["classes"] for name, group in result["test"]["groups"].items()}
    file.write_text(json.dumps(groups))
    grouped = build({**result["recipe"], "groups": str(file)})
    assert present.change(grouped, result) is None
    file.write_text(json.dumps({"one": [name for names in groups.values() for name in names]}))
    assert present.change(grouped, result) == f"the groups of {file} have changed"


def test_a_run_whose_data_is_gone_is_reused_and_that_is_said(small_grid, capsys):
    root, fill = small_grid
    fill()
    (root / "data").rename(root / "moved")
    assert fill()[0].reused
    said = capsys.readouterr().err
    assert "is reused unchecked: there is no folder" in said
    assert said.count("\n") == 1


def test_backbones_can_be_given_the_same_groups(place):
    root, words, _ = place
    erm, mr2 = folders(root)
    given = [*words, "--out", str(root / "given"), "--groups", str(erm), "--json"]
    answer = CliRunner().invoke(main, given, env={"PROBE_CACHE": str(root / "cache")})
    rows = json.loads(answer.stdout)["rows"]
    assert {row["groups_by"] for row in rows} == {f"groups by reference {erm}"}
    file = root / "groups.json"
    file.write_text('{"reddish": ["red", "rose"], "blue": ["blue"]}')
    words = ["compare", str(erm), str(mr2), "--groups", str(file), "--out", str(root / "two"), "--json"]
    found = json.loads(CliRunner().invoke(main, words).stdout)
    assert found["groups"] == ["reddish", "blue"]
    answer = CliRunner().invoke(main, ["compare", str(erm), str(mr2), "--groups", "paper"])
    assert answer.exit_code == 2
    assert answer.stderr.count("\n") == 1


def test_json_prints_the_comparison(place):
    root, words, _ = place
    answer = CliRunner().invoke(main, [*words, "--json"], env={"PROBE_CACHE": str(root / "cache")})
    assert json.loads(answer.stdout)["rows"][0]["method"] == "erm"


def folders(root):
    return [next((root / "runs").glob(f"*-{m}-*")) for m in ("erm", "mr2")]


def test_a_method_that_is_refused_has_no_erm_trained_for_it():
    def methods(*names):
        grid = compare.Grid(["effnet-lite0"], ["digits"], names, ["solver.name=sgd"])
        return [recipe.method.name for recipe in grid.recipes()]

    assert methods("center") == ["center"]  # it shapes features, which are frozen
    assert methods("focal") == ["erm", "focal"]
    assert methods("center", "focal") == ["center", "erm", "focal"]


def test_runs_can_be_compared_by_their_folders(place):
    """Paired from the stored predictions, the gain is the run's own."""
    root = place[0]
    erm, mr2 = folders(root)
    comparison = of_runs([erm, mr2])
    result = read_result(mr2)
    gain = comparison["rows"][1]["statistics"]["hard"]["gain"]
    assert comparison["reference"] == erm.name
    assert gain["mean"] == pytest.approx(result["versus"]["gain"]["hard"]["mean"])


def test_runs_that_do_not_match_are_refused_in_one_line(place, tmp_path):
    root = place[0]
    erm, mr2 = folders(root)
    with pytest.raises(UserError, match="at least two runs"):
        of_runs([erm])
    with pytest.raises(UserError, match="is not a run"):
        of_runs([erm, tmp_path])
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("recipe.yaml", "result.json"):
        (copy / name).write_bytes((mr2 / name).read_bytes())
    with pytest.raises(UserError, match=r"no predictions\.parquet"):
        of_runs([erm, copy])


def test_runs_that_begin_with_other_seeds_are_refused(place, tmp_path):
    erm, mr2 = folders(place[0])
    later = tmp_path / "later"
    later.mkdir()
    result = read_result(mr2)
    later_recipe = {**result["recipe"], "first_seed": 2}
    (later / "result.json").write_text(json.dumps({**result, "recipe": later_recipe}))
    (later / "predictions.parquet").write_bytes((mr2 / "predictions.parquet").read_bytes())
    with pytest.raises(UserError, match=r"begin with different seeds \(2 and 0\)"):
        of_runs([erm, later])


def test_runs_of_other_classes_are_refused(place, tmp_path):
    import pyarrow.parquet as pq

    erm, mr2 = folders(place[0])
    other = tmp_path / "other"
    other.mkdir()
    (other / "result.json").write_bytes((mr2 / "result.json").read_bytes())
    table = pq.read_table(mr2 / "predictions.parquet")
    names = json.dumps(["red", "rose", "green"])
    pq.write_table(table.replace_schema_metadata({"class_names": names}), other / "predictions.parquet")
    with pytest.raises(UserError, match="different classes") as error:
        of_runs([erm, other])
    assert "\n" not in str(error.value)
    pq.write_table(table.slice(1, len(table) // 4 - 1), other / "predictions.parquet")
    with pytest.raises(UserError):
        of_runs([erm, other])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--backbones", "", "--data", "digits", "--methods", "erm"],
            "the grid is empty: name at least one backbone",
        ),
        ([], "name at least one backbone and one data set and one method"),
        (["runs/a", "--methods", "erm"], "not both"),
        (
            ["--backbones", "effnet-lite0", "--data", "digits", "--methods", "mr2 tau-norm(tau=-1)"],
            "tau-norm: tau must be at least 0, not -1",
        ),
        (
            ["--backbones", "effnet-lite0", "--data", "digits", "--methods", "mr2(power=[0, -1])"],
            "mr2: power must be at least 0, not -1",
        ),
    ],
)
def test_an_empty_or_mixed_request_is_one_line(words, says):
    answer = CliRunner().invoke(main, ["compare", *words])
    assert answer.exit_code == 2
    assert says in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_data_set_that_changed_between_runs_is_noticed(place):
    root = place[0]
    grid = compare.Grid(["effnet-lite0"], [str(root / "squares")], ["erm", "mr2"], ["seeds=2"])
    cells = compare.fill(grid, cache=root / "cache", out=root / "runs")
    changed = json.loads(json.dumps(cells[1].result))
    changed["data"]["fingerprints"]["test"] = "other"
    moved = compare.Cell(cells[1].recipe, cells[1].folder, changed)
    with pytest.raises(UserError, match="different test images"):
        compare.table([cells[0], moved])


def test_report_writes_the_page_and_the_plots_again(place):
    erm, mr2 = folders(place[0])
    environment = {"PROBE_CACHE": str(place[0] / "cache")}
    answer = CliRunner().invoke(main, ["report", str(erm), str(mr2), "--plots"], env=environment)
    assert answer.exit_code == 0, answer.output
    assert (mr2 / "report.html").stat().st_size > 500_000
    drawn = sorted(p.name for p in (mr2 / "plots").iterdir())
    assert {"class-accuracy.svg", "class-accuracy.png", "group-gains.svg"} <= set(drawn)
    assert (mr2 / "plots" / "class-accuracy.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (mr2 / "plots" / "class-accuracy.svg").read_text()
    answer = CliRunner().invoke(main, ["report", str(mr2 / "predictions.parquet"), "--json"], env=environment)
    (again,) = json.loads(answer.stdout)
    own = read_result(mr2)
    assert again["test"]["top1"] == pytest.approx(own["test"]["top1"])
    assert again["versus"]["gain"]["overall"]["mean"] == pytest.approx(
        own["versus"]["gain"]["overall"]["mean"]
    )
    assert (mr2 / "predictions-report.html").is_file()


def test_a_report_of_nothing_is_one_line(tmp_path):
    answer = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert answer.exit_code == 2
    assert "is not a run" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_a_training_whose_erm_failed_is_compared_with_nothing_and_that_is_said(place):
    root = place[0]
    _, mr2 = folders(root)
    result = read_result(mr2)
    r = build({**result["recipe"], "solver": {"name": "sgd"}})
    cells = [
        compare.Cell(r.plain, root / "none", None, error="it broke"),
        compare.Cell(r, mr2, result),
    ]
    found = compare.table(cells)
    (row,) = found["rows"]
    assert {statistic["gain"] is None for statistic in row["statistics"].values()} == {True}
    assert [failed["method"] for failed in found["failed"]] == ["erm-sgd"]
    assert any("compared with nothing: its erm has failed" in remark for remark in found["remarks"])


def test_probes_are_compared_with_the_exact_probe_of_erm_and_the_table_says_so(place):
    root, _, answer = place
    folder, comparison = comparison_of(root)
    assert (comparison["reference"], comparison["how"]) == ("erm", "frozen probe")
    assert "gain over erm (frozen probe)" in " ".join(answer.output.split())
    for name in ("comparison.md", "comparison.tex", "comparison.html"):
        assert "erm (frozen probe)" in (folder / name).read_text()


def test_no_run_is_begun_after_the_minutes_and_the_rest_goes_on_later(place):
    _, words, _ = place
    more = [word.replace("erm mr2 supcon", "erm la") for word in words]
    none = CliRunner().invoke(main, [*more, "--minutes", "0", "--json"])
    found = json.loads(none.stdout)
    assert [row["method"] for row in found["rows"]] == ["erm"]  # which exists
    assert [(row["method"], row["error"]) for row in found["failed"]] == [("la", compare.NO_TIME)]
    whole = json.loads(CliRunner().invoke(main, [*more, "--minutes", "9", "--json"]).stdout)
    assert [(row["method"], row["reused"]) for row in whole["rows"]] == [("erm", True), ("la", False)]
    refused = CliRunner().invoke(main, [*more, "--minutes", "-1"])
    assert refused.exit_code == 2
    assert "--minutes -1" in refused.stderr
