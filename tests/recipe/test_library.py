"""Recipes by name: shipped ones from anywhere, tables row by row, mistakes in one line."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from probe import methods, recipe
from probe.cli import main
from probe.errors import UserError
from probe.methods import ranges
from probe.probing import second_stage
from probe.probing.stage import FirstHead
from probe.recipe import library, tables
from probe.runs import first_stage, run, strategy
from probe.runs.availability import Catalogues
from tests.support import ROOT

EVERY = library.every()
CATALOGUES = Catalogues()
RUNNABLE = [row for row in EVERY if CATALOGUES.why_not(row.content) is None]
MINIMAL = {"paper": "P", "table": "1", "title": "T", "columns": ["overall", "hard"]}


@pytest.mark.parametrize("file", sorted({row.file for row in RUNNABLE}))
def test_every_shipped_recipe_that_can_be_run_passes_the_checks_of_a_run(file):
    """Nothing that could only fail after hours, and no setting without effect."""
    for row in (row for row in RUNNABLE if row.file == file):
        run.check(strategy.choose(recipe.build(dict(row.content))))


def test_a_row_can_be_run_as_soon_as_its_method_exists(monkeypatch):
    """The catalogue is asked: nothing here lists what there is."""
    row = {"method": "ride(erm)", "solver": "sgd"}
    assert Catalogues().why_not(row) == 'there is no method "ride"'
    assert Catalogues().why_not({"method": "sam(row=1)"}) == 'sam has no parameter "row"'
    monkeypatch.setitem(methods.catalogue._ADDED, "ride", replace(methods.info("sam"), name="ride"))
    assert Catalogues().why_not(row) is None


def test_every_table_has_its_published_numbers():
    """Spot checks against the papers, and a whole column."""
    by_name = {row.name: row for row in EVERY}
    fairdro = by_name["mr2/table1-cifar100/fairdro"]
    assert fairdro.published == {"overall": 72.0, "easy": 85.7, "medium": 72.5, "hard": 57.7}
    assert by_name["dbm/table2-cifar100-lt/dbm-bs-if100"].published["few"] == 33.23
    assert by_name["dbm/table2-cifar10-lt/dbm-ncl-if10"].published == {"overall": 93.19}
    assert by_name["elm/table2-cifar100-lt/elm"].published == {"overall": 45.77}
    assert by_name["not-equal/table4-cifar100/jtt"].published["hard"] == 69.6
    hard = [by_name[f"mr2/table2-cifar100/mr2-{net}"].published["hard"] for net in ("resnet20", "wrn-22-10")]
    assert hard == [56.7, 70.2]
    papers = {row.name.partition("/")[0] for row in EVERY if row.row is not None}
    assert papers == {"mr2", "dbm", "elm", "not-equal", "evidence"}  # the last is our own


def test_mr2_is_there_with_and_without_autoaugment_and_figure_2_starts_from_the_class_names():
    policies = {
        name: recipe.build(library.content(f"mr2/table1-cifar100/{name}")).train.augment.policy
        for name in ("erm", "mr2", "erm-autoaugment", "mr2-autoaugment")
    }
    assert list(policies.values()) == ["none", "none", "autoaugment", "autoaugment"]
    pets = recipe.build(library.content("mr2/figure2/mr2-pets"))
    assert (pets.finetune, pets.train.head, pets.train.start) == (True, "cosine", "zeroshot")


def test_a_row_is_found_from_anywhere(tmp_path):
    code = "from probe.recipe import library; print(library.content('mr2/table1-cifar100/fairdro')['method'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.strip() == "fairdro(every=pass)", done.stderr


def test_paths_work_as_they_did(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert library.content("recipes/mr2/pets.yaml") == library.content("mr2/pets")


def test_the_wheel_takes_the_recipes_along():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (pattern,) = [p for p in settings["package-data"]["probe"] if p.startswith("recipes/")]
    packaged = {path.resolve() for path in (ROOT / "probe").glob(pattern)}
    assert packaged == {path.resolve() for path in (ROOT / "recipes").rglob("*.yaml")}
    assert {path.resolve() for path in library.shipped().values()} == packaged


def test_the_list_has_a_line_a_row_and_json_has_its_numbers():
    rows = json.loads(CliRunner().invoke(main, ["recipes", "--json"]).output)
    by_name = {row["name"]: row for row in rows}
    found = by_name["mr2/table1-cifar100/fairdro"]
    assert found["paper"].startswith("Zhu et al.")
    assert (found["table"], found["row"]) == ("1a", "fairdro")
    assert found["published"]["hard"] == 57.7
    assert by_name["dbm/table2-cifar100-lt/bs-if50"]["runnable"]
    assert by_name["dbm/table3-imagenet-lt/ride-resnet50"]["why_not"] == 'there is no method "ride"'
    assert by_name["mr2/pets"]["published"] is None
    lines = CliRunner().invoke(main, ["recipes"]).output.splitlines()
    for name in by_name:
        assert sum(line.startswith(f"{name} ") for line in lines) == 1


def test_a_whole_table_is_not_a_recipe():
    with pytest.raises(UserError, match=r"is a table of .* rows: run one of them") as error:
        library.content("mr2/table1-cifar100")
    assert "probe compare --recipes mr2/table1-cifar100" in str(error.value)
    with pytest.raises(UserError, match="recipe without rows"):
        library.content("mr2/pets/erm")
    for word in ("nothing/here", "x" * 5000, "a\0b", str(ROOT)):
        with pytest.raises(UserError, match="no such file"):
            library.content(word)
    with pytest.raises(UserError, match=r"cannot read recipe no\.yaml"):
        library.content("no.yaml")


def test_a_row_that_needs_the_run_of_another_says_which():
    with pytest.raises(
        UserError, match=r"needs the run of .*/ce-resnet50: give its folder, method\.first=RUN"
    ):
        library.content("dbm/table3-imagenet-lt/crt-resnet50")
    found = library.content("dbm/table3-imagenet-lt/crt-resnet50", ["method.first=runs/a"])
    assert "finetune" not in found  # a second stage trains nothing
    assert "train" not in found


def test_a_table_of_one_row_is_still_a_table(tmp_path):
    (tmp_path / "t.yaml").write_text(json.dumps({**MINIMAL, "rows": [{"name": "only"}]}))
    with pytest.raises(UserError, match="run one of them"):
        library.content(str(tmp_path / "t.yaml"))
    assert library.content(str(tmp_path / "t.yaml" / "only")) == {"method": "erm"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"name": "a", "publishd": [1]}]}, 'unknown key "rows.0.publishd"'),
        ({"rows": [{"name": "a", "published": [1]}]}, "1 published numbers for the columns overall, hard"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, 'two rows are called "a"'),
        ({"rows": [{"name": "a", "against": "b"}]}, 'no row "b"'),
        ({"rows": [{"name": "a", "published": {"x": [1, 2]}}]}, "has no variants"),
        ({"rows": [{"name": "a", "published": [1, float("nan")]}]}, "nan is not a finite number"),
        ({"rows": [{"name": "a/b"}]}, "rows.0.name"),
        ({"rows": 3}, "rows"),
        ({"columns": None, "rows": []}, "columns"),
    ],
)
def test_mistakes_of_a_table_are_one_line_that_names_the_file(change, message):
    with pytest.raises(UserError, match=message) as error:
        tables.rows_of({**MINIMAL, **change}, "my/table")
    assert str(error.value).startswith("my/table")
    assert "\n" not in str(error.value)


def test_settings_of_a_row_go_over_those_of_the_table_section_by_section():
    base = {"data": "cifar100", "train": {"lr": 0.1, "epochs": 3}}
    over = {"data": {"imbalance": 10}, "train": {"lr": 0.2}, "seeds": 2}
    found = tables.merged({**base, "seeds": 3}, over)
    assert found.pop("seeds") == 2
    assert found == {"data": {"name": "cifar100", "imbalance": 10}, "train": {"lr": 0.2, "epochs": 3}}
    assert base["train"] == {"lr": 0.1, "epochs": 3}
    assert tables.merged(base, {"train": None}) == {"data": "cifar100"}  # left out


def test_variants_repeat_the_rows_that_the_paper_has():
    content = {
        **MINIMAL,
        "variants": {
            "x": {"settings": {"seeds": 2}, "columns": ["overall"]},
            "y": {"settings": {"seeds": 3}},
        },
        "rows": [
            {"name": "a", "published": {"x": [1], "y": [2, 3]}, "method": {"x": "erm", "y": "la"}},
            {"name": "b", "published": {"y": [4, 5]}},
        ],
    }
    rows = {row.row: row for row in tables.rows_of(content, "t")}
    assert list(rows) == ["a-x", "a-y", "b-y"]
    assert rows["a-y"].published == {"overall": 2, "hard": 3}
    assert rows["a-y"].content == {"seeds": 3, "method": "la"}
    assert Path(rows["a-x"].name).parent == Path("t")


def test_a_second_stage_of_a_table_can_start_from_the_run_of_its_first():
    """Before any is trained: else it is refused days later."""
    stages = [row for row in RUNNABLE if "first" in row.uses]
    by_name = {row.name: row for row in EVERY}
    assert stages
    for row in stages:
        mine = recipe.build(dict(row.content))
        first = recipe.build(dict(by_name[f"{row.file}/{row.uses['first']}"].content))
        assert (mine.backbone, mine.data) == (first.backbone, first.data)
        head = FirstHead(row.uses["first"], None, saw_holdout=not (first.trains and first.train.selects))
        second_stage.check(replace(first_stage.settings(mine.method), first=head), mine.solver)


def test_what_a_run_does_otherwise_than_the_paper_is_marked_as_ours():
    """Defaults of our trainings (ramps, units) are no published settings."""
    for row in (row for row in RUNNABLE if row.paper is not None):
        method = ranges.points(recipe.build(dict(row.content)).method)[0]
        given = methods.catalogue.given_to(method.name, method.params)[1][1]
        spec = methods.inner(method.name, method.params)
        own = [key for key in spec.whole_set_defaults if key not in given]
        marked = {"method", *(f"method.{key}" for key in own)} & set(row.ours)
        assert not own or marked, row.name


def test_stated_settings_of_the_papers_are_those_of_the_rows():
    """DBM: scale 30 on the large sets. GPaCo on ImageNet: alpha 0.05, T 0.2. NCL without what we soften."""

    def params(name):
        method = recipe.build(library.content(name)).method
        return methods.catalogue.given_to(method.name, method.params)

    for name in ("dbm/table3-imagenet-lt/dbm-bcl-resnet50", "dbm/table4-inat2018/dbm-bcl"):
        assert params(name)[1] == ("dbm", {"base": "bs", "scale": 30})
    own = params("not-equal/table2-contrastive/gpaco")[0]
    assert (own["alpha"], own["temperature"]) == (0.05, 0.2)
    for name in ("ncl-if100", "dbm-ncl-if10"):
        own = params(f"dbm/table2-cifar100-lt/{name}")[0]
        assert (own["contrast"], own["weight"], own["ramp"]) == (1, 1, 0)


def test_rows_that_wait_for_each_other_are_refused(tmp_path):
    rows = [{"name": "a", "uses": {"first": "b"}}, {"name": "b", "uses": {"first": "a"}}]
    for given in (rows, [{"name": "a", "uses": {"first": "a"}}]):
        (tmp_path / "t.yaml").write_text(json.dumps({**MINIMAL, "rows": given}))
        with pytest.raises(UserError, match='row "a" needs its own run'):
            library.rows(str(tmp_path / "t.yaml"))
