"""`make evidence`: runs what is missing while there is time, goes on later, and publishes what exists."""

import csv

import pytest

from benchmarks import evidence
from probe.recipe import library
from tests.support import ROOT

TABLE = """
paper: ours
table: frozen
title: Frozen features
columns: [overall, easy, medium, hard]
settings: {seeds: 1, backbone: {name: effnet-lite0, image_size: 32}, solver: {l2: 1}, features: {workers: 0}}
variants:
  digits: {title: digits, settings: {data: {name: digits}}}
  pets: {title: pets, settings: {data: {name: pets}}}
rows:
- {name: erm}
- {name: mr2, method: mr2(power=2)}
- {name: later, method: later}
"""


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A small table in the place of the frozen part, none of which has been run; then all of it."""
    root = tmp_path_factory.mktemp("evidence")
    (root / "frozen.yaml").write_text(TABLE)
    words = ["--only", "frozen", "--work", root / "runs", "--cache", root / "cache"]
    words += ["--results", root / "results", "--figure", root / "evidence.svg"]
    shipped = {"evidence/frozen": root / "frozen.yaml"}

    def call(*more):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "shipped", lambda: shipped)
            return evidence.main([str(word) for word in (*words, *more)])

    return root, call, call("--minutes", "0"), call()


def test_without_time_nothing_is_begun_and_with_it_all_that_can_be_run(place, capsys):
    root, call, before, after = place
    assert (before, after) == (1, 0)
    runs = sorted(path.name for path in (root / "runs").iterdir())
    assert len(runs) == 2
    assert call("--minutes", "0") == 0  # reads what exists
    assert sorted(path.name for path in (root / "runs").iterdir()) == runs
    said = capsys.readouterr().out
    assert "pets, 3 rows: all seeds: no --pets was given" in said
    assert 'digits, 1 rows: all seeds: there is no method "later"' in said
    assert [row["rows"] for row in rows_of(root / "results" / "left-out.csv")] == ["1", "3"]


def test_gains_are_corrected_together_and_their_number_is_stated(place):
    root, *_ = place
    found = rows_of(root / "results" / "frozen.csv")
    assert [(row["method"], row["classes"]) for row in found[4:]] == [
        ("mr2", name) for name in ("overall", "easy", "medium", "hard")
    ]
    assert all(row["gain"] == "" for row in found[:4])  # erm itself
    p = sorted((float(row["p"]), float(row["p_holm"])) for row in found[4:])
    assert p[0][1] == pytest.approx(min(4 * p[0][0], 1), rel=1e-3)
    assert {row["comparisons"] for row in found} == {"4"}
    assert all(float(row["low"]) <= float(row["gain"]) <= float(row["high"]) for row in found[4:])


def test_what_was_found_elsewhere_stays_in_the_tables_and_in_the_figure(place):
    root, call, *_ = place
    table = root / "results" / "frozen.csv"
    before = rows_of(table)
    other = [{**row, "study": "cars", "data": "cars, elsewhere", "comparisons": "9"} for row in before]
    stale = [{**row, "accuracy": "0"} for row in before]
    with table.open("w", newline="") as file:
        out = csv.DictWriter(file, before[0])
        out.writeheader()
        out.writerows([*other, *stale])
    (root / "results" / "left-out.csv").write_text("part,study,rows,why\nscratch,plain,5,no time\n")
    assert call("--minutes", "0") == 0
    assert rows_of(table) == [*other, *before]
    assert [row["part"] for row in rows_of(root / "results" / "left-out.csv")] == [
        "scratch",
        "frozen",
        "frozen",
    ]
    assert "cars, elsewhere" in (root / "evidence.svg").read_text()


def test_of_a_study_that_was_run_elsewhere_only_that_machine_says_what_was_left_out(place):
    root, call, *_ = place
    table, left_out = root / "results" / "frozen.csv", root / "results" / "left-out.csv"
    before = rows_of(table)
    with table.open("a", newline="") as file:
        csv.DictWriter(file, before[0]).writerows({**row, "study": "pets"} for row in before)
    left_out.write_text("part,study,rows,why\nfrozen,pets,1,no time there\n")
    assert call("--minutes", "0") == 0
    said = {row["study"]: row["why"] for row in rows_of(left_out)}
    assert said["pets"] == "no time there"
    assert "no method" in said["digits"]


def test_forecasts_and_the_figure_come_from_the_same_runs(place):
    root, *_ = place
    found = {
        row["sign"]: float(row["rank_correlation_with_error"])
        for row in rows_of(root / "results" / "forecast.csv")
    }
    assert list(found) == ["forecast", "spread", "gamma of mr2"]
    assert found["spread"] == pytest.approx(found["gamma of mr2"])  # margins follow the spread
    assert "change overall" in (root / "evidence.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "-1"], "--minutes -1: give 0"),
        (["--pets", "no/such"], "--pets no/such: there is no such folder"),
        (["--only", "frosen"], "invalid choice: 'frosen'"),
        (["--only", "frozen", "--without", "drö"], "--without drö: known are 'erm', 'la', 'mr2'"),
    ],
)
def test_bad_input_is_one_clear_line(words, said, capsys):
    with pytest.raises(SystemExit) as error:
        evidence.main(words)
    assert error.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_every_part_has_its_table_and_every_study_its_erm():
    assert {path.stem for path in (ROOT / "recipes" / "evidence").glob("*.yaml")} == set(evidence.PARTS)
    for study in (s for part in evidence.PARTS for s in evidence.studies(part)):
        assert study.rows[0].content["method"] == "erm"
        assert study.data in (*evidence.FOLDERS, "digits")
