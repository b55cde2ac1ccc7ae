"""`make evidence`: runs what is not published while there is time, publishes it, and all tables follow."""

import base64
import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evidence import __main__ as evidence
from benchmarks.evidence import figure, pages, power, tables
from benchmarks.evidence import studies as studies_module
from benchmarks.evidence.outcomes import Published
from benchmarks.evidence.studies import FOLDERS, PARTS, studies
from probe.errors import UserError
from probe.evaluation.summary import EvaluationSet, MethodOutcome, gain_over
from probe.recipe import library
from tests.support import ROOT

TABLE = """
paper: ours
table: frozen
title: Frozen features
columns: [overall, easy, medium, hard]
settings: {seeds: 3, backbone: {name: effnet-lite0, image_size: 32}, solver: {l2: %s}, features: {workers: 0}}
variants:
  digits: {title: digits, settings: {data: {name: digits%s}}}
  pets: {title: pets, settings: {data: {name: pets}}}
rows:
- {name: erm}
- {name: mr2, method: mr2(power=2)}
- {name: later, method: later}
"""


PAGE = """Before.

<!-- evidence: frozen -->
old
<!-- end -->

Between. <!-- evidence: forecast --><!-- end --> <!-- evidence: other -->kept<!-- end -->
"""


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Place:
    """A small table in the place of the frozen part, with runs, cache and results of its own."""

    def __init__(self, root, *, l2="1", data=""):
        self.root, self.results = root, root / "results"
        (root / "frozen.yaml").write_text(TABLE % (l2, data))
        (root / "page.md").write_text(PAGE)

    def __call__(self, *more):
        words = ["--only", "frozen", "--work", self.root / "runs", "--cache", self.root / "cache"]
        words += ["--results", self.results, "--figure", self.root / "evidence.svg"]
        words += ["--page", self.root / "page.md", *more]
        with pytest.MonkeyPatch.context() as patch:
            shipped = {**library.shipped(), "evidence/frozen": self.root / "frozen.yaml"}
            patch.setattr(library, "shipped", lambda: shipped)
            return evidence.main([str(word) for word in words])

    def lines(self, name="frozen"):
        return rows_of(self.results / f"{name}.csv")

    def outcomes(self):
        found = Published(self.results).of("frozen", "digits")
        assert found is not None
        return {row.method: row for row in found.rows.values()}

    def runs(self):
        return sorted(path.name for path in (self.root / "runs").glob("[!.]*"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """None of it has been run; then all of it. A seed changes nothing, because l2 is given."""
    place = Place(tmp_path_factory.mktemp("evidence"))
    return place, place("--minutes", "0"), place()


def test_without_time_nothing_is_begun_and_with_it_all_that_can_be_run(place, capsys):
    place, before, after = place
    assert (before, after) == (1, 0)
    runs = place.runs()
    assert len(runs) == 4  # two methods: seeds 0 and 1, then seed 2
    assert place("--minutes", "0") == 0  # reads what is published
    assert place.runs() == runs
    said = capsys.readouterr().out
    assert "pets, 3 rows have 0 of 3 seeds: not run yet" in said
    assert "digits, 1 rows have 0 of 3 seeds: nothing of evidence/frozen can be run" in said
    assert 'there is no method "later"' in said
    left_out = [row for row in place.lines("left-out") if row["part"] == "frozen"]
    assert [row["rows"] for row in left_out] == ["1", "3"]


def test_seeds_that_give_the_same_head_count_once(place):
    place, *_ = place
    assert {name: (row.seeds, len(row.correct)) for name, row in place.outcomes().items()} == {
        "erm": (3, 1),
        "mr2": (3, 1),
    }


def test_gains_are_corrected_together_and_their_number_is_stated(place):
    place, *_ = place
    found = place.lines()
    assert [(row["method"], row["classes"]) for row in found[4:]] == [
        ("mr2", name) for name in ("overall", "easy", "medium", "hard")
    ]
    assert all(row["gain"] == "" for row in found[:4])  # erm itself
    p = sorted((float(row["p"]), float(row["p_holm"])) for row in found[4:])
    assert p[0][1] == pytest.approx(min(4 * p[0][0], 1), rel=1e-3)
    assert {row["comparisons"] for row in found} == {"4"}
    assert all(float(row["low"]) <= float(row["gain"]) <= float(row["high"]) for row in found[4:])


def test_tables_follow_from_what_is_published_on_another_machine(place, tmp_path):
    place, *_ = place
    other = Place(tmp_path)
    shutil.copytree(place.results / "outcomes", other.results / "outcomes")
    assert other() == 0  # nothing is left to run
    assert other.runs() == []
    assert other.lines() == place.lines()
    assert other.lines("forecast") == place.lines("forecast")
    pictures = [(p.root / "evidence.svg").read_text() for p in (other, place)]
    assert len({re.sub(r"clip\d+", "clip", picture) for picture in pictures}) == 1


def test_published_gains_are_those_of_the_runs(place):
    place, *_ = place
    run = next(name for name in place.runs() if "mr2" in name)
    result = json.loads((place.root / "runs" / run / "result.json").read_text())
    shown = {row["classes"]: row for row in place.lines() if row["method"] == "mr2"}
    assert float(shown["overall"]["accuracy"]) == pytest.approx(100 * result["test"]["top1"], abs=0.005)
    gains = result["versus"]["gain"]
    for group in ("overall", "hard"):
        assert float(shown[group]["gain"]) == pytest.approx(100 * gains[group]["mean"], abs=0.005)
        alone = [float(shown[group][f"{end}_alone"]) for end in ("low", "high")]
        assert alone == pytest.approx([100 * end for end in gains[group]["ci_alone"]], abs=0.005)


def test_rows_whose_outcomes_were_not_kept_keep_their_lines(place):
    place, *_ = place
    table = place.results / "frozen.csv"
    before = place.lines()
    earlier = [{**row, "recipe": "", "comparisons": "9"} for row in before]
    pets = [{**row, "study": "pets", "data": "pets, earlier", "seeds": "3"} for row in earlier]
    fewer = [{**row, "accuracy": "0", "seeds": "0"} for row in earlier[:4]]
    more = [{**row, "accuracy": "1", "seeds": "9"} for row in earlier[4:]]
    gone = [{**row, "method": "gone"} for row in earlier[4:]]
    stale = [{**row, "method": "later"} for row in before[4:]]  # was published, and no longer is
    with table.open("w", newline="") as file:
        out = csv.DictWriter(file, before[0])
        out.writeheader()
        out.writerows([*pets, *gone, *fewer, *more, *stale])
    assert place("--minutes", "0") == 0
    assert place.lines() == [*before[:4], *more, *gone, *pets]
    assert "pets, earlier" in (place.root / "evidence.svg").read_text()
    runs = place.runs()
    assert place("--studies", "pets", "--pets", place.root, "--without", "later") == 0  # lines are enough
    assert place.runs() == runs
    table.unlink()
    assert place("--minutes", "0") == 0
    assert place.lines() == before


def test_forecasts_and_the_figure_come_from_the_same_outcomes(place):
    place, *_ = place
    found = {row["sign"]: float(row["rank_correlation_with_error"]) for row in place.lines("forecast")}
    assert list(found) == ["forecast", "spread", "gamma of mr2"]
    assert found["spread"] == pytest.approx(found["gamma of mr2"])  # margins follow the spread
    assert "change overall" in (place.root / "evidence.svg").read_text()


def test_the_page_has_the_published_figures_between_its_marks_and_nothing_else_changes(place):
    place, *_ = place
    page = (place.root / "page.md").read_text()
    frozen = page.partition("<!-- evidence: frozen -->\n")[2].partition("\n<!-- end -->")[0]
    heading, _, digits, *_ = frozen.splitlines()
    assert heading.startswith("| data | seeds | `erm` | hard | `mr2` |")
    shown = {(row["method"], row["classes"]): row for row in place.lines() if row["study"] == "digits"}
    erm, hard = (float(shown["erm", group]["accuracy"]) for group in ("overall", "hard"))
    gains = [float(shown["mr2", group]["gain"]) for group in ("hard", "overall")]
    signed = [f"{gain:+.1f}".replace("-", "\N{MINUS SIGN}") for gain in gains]
    signed = [text.lstrip("+\N{MINUS SIGN}") if text[1:] == "0.0" else text for text in signed]
    assert digits.startswith(f"| digits | 1 | {erm:.1f} | {hard:.1f} | {signed[0]} ({signed[1]}) |")
    assert page.startswith("Before.\n")
    assert "old" not in page
    assert "| spread |" in page.partition("Between.")[2]
    assert "<!-- evidence: other -->kept<!-- end -->" in page


def test_what_is_clear_is_told_with_the_number_that_was_tried():
    about = {"data": "pets", "selection": "budget", "method": "la", "seeds": "5", "p_holm": "0.0123"}
    about |= {"low": "0.31", "high": "7.84"}
    lines = [
        {**about, "classes": "hard", "gain": "4.08", "verdict": "better"},
        {**about, "classes": "easy", "gain": "-0.4", "verdict": "no clear change"},
        {**about, "classes": "overall", "gain": "", "verdict": ""},
    ]
    said, _, *_, row = pages.clear(lines).splitlines()
    assert said == "Clear after the correction are 1 of 2 gains:"
    assert row == "| pets | hard, in a budget | `la` | hard | 5 | +4.1 | +0.3 to +7.8 | 0.012 |"


def test_the_summary_is_over_the_studies_of_a_situation():
    about = {"method": "la", "selection": "overall", "verdict": "no clear change", "classes": "hard"}
    about |= {"part": "frozen"}
    lines = [
        {**about, "data": "Frozen features, pets, imbalance 10", "gain": "4.1", "verdict": "better"},
        {**about, "data": "Frozen features, pets, imbalance 99", "gain": "16.0"},
        {**about, "data": "Frozen features, pets", "gain": "-0.2"},
        {**about, "data": "Frozen features, pets", "gain": "50", "classes": "easy"},
        {**about, "data": "Long tail, CIFAR-100-LT 100", "gain": "2", "part": "long-tail", "classes": "few"},
    ]
    row = pages.summary(lines).splitlines()[-1]
    balanced, tail = "\N{MINUS SIGN}0.2, 0 of 1 clear", "+10.1 (+4.1 to +16.0), 1 of 2 clear"
    assert row == f"| `la` | all | {balanced} | {tail} |  | +2.0, 0 of 1 clear |"


def test_clear_gains_are_bold_and_a_long_tail_shows_its_rarest():
    about = {"data": "Long tail, CIFAR-100-LT", "selection": "auto", "seeds": "3", "part": "long-tail"}
    plain = {**about, "method": "erm", "gain": "", "verdict": ""}
    bcl = {**about, "method": "bcl"}
    found = pages.gains(
        [
            {**plain, "classes": "overall", "accuracy": "19.11"},
            {**plain, "classes": "few", "accuracy": "0.13"},
            {**bcl, "classes": "overall", "accuracy": "27.9", "gain": "8.8", "verdict": "no clear change"},
            {**bcl, "classes": "few", "accuracy": "16.2", "gain": "16.1", "verdict": "better"},
        ]
    )
    assert found.splitlines()[-1] == "| CIFAR-100-LT | 3 | 19.1 | 0.1 | **+16.1** (+8.8) |"


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_the_smallest_gain_is_seen_in_four_of_five_repetitions(seeds):
    """Estimated from other experiments of as many seeds, where nothing differs."""
    rng, classes, images, trials = np.random.default_rng(0), 5, 120, 150
    labels = np.repeat(np.arange(classes), images)
    eval_set = EvaluationSet(labels, tuple("abcde"), {"hard": list(range(classes))})

    def gain(true):
        hardness = rng.normal(size=len(labels))
        pair = []
        for level in (0.0, true):
            own = 0.0 if seeds == 1 else 0.05 * rng.normal(size=(seeds, 1))
            right = 0.6 + 0.2 * np.tanh(hardness) + level + own
            pair.append(MethodOutcome("m", rng.random((seeds, len(labels))) < right))
        return gain_over(pair[1], pair[0], eval_set)["gain"]["overall"]

    smallest = np.mean([power.smallest_gain(gain(0.0), seeds) for _ in range(trials)])
    seen = np.mean([gain(smallest)["p"] < 0.05 for _ in range(trials)])
    assert 0.6 < seen < 0.92  # three seeds show too little of their own variance
    halved = np.mean([power.smallest_gain(gain(0.0), 2 * seeds) for _ in range(20)])
    assert halved < smallest


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Each seed learns from ten other images of a class; all seeds, first two of them, and then the last."""
    place = Place(tmp_path_factory.mktemp("few"), data=", shots: 10")
    assert place("--seeds", "2") == 0
    two = place.outcomes()
    assert place() == 0
    return place, two


def test_more_seeds_follow_those_that_are_published(few, tmp_path):
    place, two = few
    three = place.outcomes()
    assert {name: [(r.first_seed, r.seeds) for r in row.runs] for name, row in three.items()} == {
        name: [(0, 2), (2, 1)] for name in ("erm", "mr2")
    }
    once = Place(tmp_path, data=", shots: 10")
    shutil.copytree(place.root / "cache", once.root / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.evidence.studies.FIRST", 3)
        assert once() == 0
    for name, row in once.outcomes().items():
        assert [(r.first_seed, r.seeds) for r in row.runs] == [(0, 3)]
        assert np.array_equal(row.correct, three[name].correct)
        assert np.array_equal(two[name].correct, three[name].correct[:2])
        assert not np.array_equal(row.correct[1], row.correct[2])
        assert row.groups == three[name].groups == two[name].groups
    shown = tables.HEADINGS[tables.HEADINGS.index("classes") : tables.HEADINGS.index("seconds")]
    apart, together = ([[line[key] for key in shown] for line in p.lines()] for p in (place, once))
    assert apart == together


def test_fewer_seeds_and_seeds_that_are_there_change_nothing(few):
    place, two = few
    three = place.outcomes()["erm"]
    first = two["erm"]
    last = replace(three, runs=three.runs[1:], correct=three.correct[2:])
    assert first.then(last).correct.shape == three.correct.shape
    assert three.then(first) is three
    assert three.then(last) is three
    from_one = replace(three.runs[1], first_seed=1, seeds=2)
    overlapping = replace(three, runs=(from_one,), correct=three.correct[1:])
    assert np.array_equal(first.then(overlapping).correct, three.correct)
    gap = replace(last, runs=(replace(last.runs[0], first_seed=3),))
    with pytest.raises(UserError, match="do not follow 2 published ones"):
        first.then(gap)
    with pytest.raises(UserError, match="of other settings, weights or images"):
        first.then(replace(last, learnt_from="other weights"))


def test_gains_are_over_the_seeds_that_both_have_and_say_so(few):
    place, two = few
    study = Published(place.results).of("frozen", "digits")
    assert study is not None
    mr2 = place.outcomes()["mr2"]
    line = tables.Line.of(study, mr2, two["erm"], counted=False)
    assert line.seeds == 2
    right = [row.correct[:2].mean() for row in (mr2, two["erm"])]
    assert line.statistics["overall"]["gain"]["mean"] == pytest.approx(right[0] - right[1])
    assert line.statistics["overall"]["accuracy"] == pytest.approx(right[0])


def test_a_second_stage_is_another_experiment_where_its_first_is():
    (study,) = (s for s in studies("long-tail") if s.name == "lt100-all")
    crt = next(row for row in study.rows if row.title == "crt")
    changed = [
        replace(row, content={**row.content, "train": {"epochs": 1}}) if row.title == "erm" else row
        for row in study.rows
    ]
    other = replace(study, rows=tuple(changed))
    assert study.settings(crt) != other.settings(crt)
    bs = next(row for row in study.rows if row.title == "bs")
    assert study.settings(bs) == other.settings(bs)


def test_another_experiment_of_the_same_name_begins_anew(few, tmp_path):
    place, _ = few
    other = Place(tmp_path, l2="10", data=", shots: 10")
    shutil.copytree(place.results, other.results)
    shutil.copytree(place.root / "cache", other.root / "cache")
    before = other.outcomes()
    assert other("--seeds", "1") == 0
    after = other.outcomes()
    for name in ("erm", "mr2"):
        assert [(r.first_seed, r.seeds) for r in after[name].runs] == [(0, 1)]
        assert after[name].settings != before[name].settings
    assert {row["seeds"] for row in other.lines()} == {"1"}


def test_outcomes_of_other_test_images_are_refused(few, tmp_path, capsys):
    place, _ = few
    other = Place(tmp_path, data=", shots: 10")
    shutil.copytree(place.results, other.results)
    (path,) = (other.results / "outcomes").glob("*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "test": "other images", "rows": []}))
    shutil.copytree(place.root / "cache", other.root / "cache")
    assert other("--seeds", "1") == 0
    assert "of other test images" in capsys.readouterr().out


def damaged(content):
    """The outcomes of a study with one mistake each."""
    row, *others = content["rows"]
    short = base64.b64encode(base64.b64decode(row["correct"][0])[:-1]).decode()
    yield "{"
    yield '"text"'
    yield json.dumps({**content, "format": 0})
    yield json.dumps({**content, "classes": content["classes"][1:]})
    yield json.dumps({**content, "tested": [content["tested"][0] + 8, *content["tested"][1:]]})
    for change in (
        {"runs": []},
        {"correct": []},
        {"correct": [short, *row["correct"][1:]]},
        {"correct": ["!" + row["correct"][0][1:], *row["correct"][1:]]},
        {"correct": row["correct"][:2]},
        {"groups": {}},
        {"groups": {"hard": [10]}},
    ):
        yield json.dumps({**content, "rows": [{**row, **change}, *others]})


def test_damaged_outcomes_are_one_line(few, tmp_path, capsys):
    place, _ = few
    other = Place(tmp_path, data=", shots: 10")
    shutil.copytree(place.results, other.results)
    (path,) = (other.results / "outcomes").glob("*.json")
    for text in damaged(json.loads(path.read_text())):
        path.write_text(text)
        assert other("--minutes", "0") == 2, text[:200]
        said = capsys.readouterr().err
        assert "holds no outcomes of this version" in said
        assert len(said.splitlines()) == 1


def test_what_is_finished_is_published_when_the_rest_is_interrupted(tmp_path, capsys):
    place = Place(tmp_path)
    real = studies_module.fill

    def interrupted(plan, finished, **options):
        def told(cell):
            finished(cell)
            raise KeyboardInterrupt

        return real(plan, told, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies_module, "fill", interrupted)
        assert place() == 130
    assert capsys.readouterr().err.splitlines()[-1] == "stopped; the same command goes on from here"
    assert list(place.outcomes()) == ["erm"]


def dot(method, overall, hard, *, part="finetune", seeds="5", low=None):
    """The lines of a table that make one dot of the figure."""
    about = {"part": part, "data": "pets", "method": method, "selection": "auto", "seeds": seeds}
    for classes, gain in (("overall", overall), ("hard", hard)):
        ends = {"low_alone": str(gain - 1 if low is None else low), "high_alone": str(gain + 1)}
        yield {**about, "classes": classes, "gain": str(gain), **ends}


def test_names_in_the_figure_stand_apart_and_those_without_room_are_left_out():
    lines = [line for at in range(9) for line in dot(f"method-{at}", 2.0, 3.0)]
    lines += [*dot("far", -9.0, -12.0), *dot("near", 0.2, 0.3)]
    (panel,) = figure.of(lines).spec["concat"]
    named = [row["method"] for layer in panel["layer"] if "data" in layer for row in layer["data"]["values"]]
    assert "far" in named
    assert "near" not in named  # nothing happens there
    assert 1 <= sum(name.startswith("method-") for name in named) <= 4  # one on each side of the same dot


def test_an_endless_interval_does_not_stretch_the_figure():
    (panel,) = figure.of(dot("mr2", 1.0, 2.0, low=-100.0)).spec["concat"]
    y = panel["layer"][2]["encoding"]["y"]
    assert y["scale"]["domain"][0] > -3


def test_a_mark_without_an_end_swallows_nothing():
    page = "<!-- evidence: a -->text <!-- evidence: b -->old<!-- end --> rest"
    assert pages.written(page, {"a": "A", "b": "B"}) == (
        "<!-- evidence: a -->text <!-- evidence: b -->\nB\n<!-- end --> rest"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "-1"], "--minutes -1: give 0"),
        (["--seeds", "0"], "--seeds 0: give 1 or more"),
        (["--pets", "no/such"], "--pets no/such: there is no such folder"),
        (["--only", "frosen"], "invalid choice: 'frosen'"),
        (["--only", "frozen", "--studies", "dogs"], "--studies dogs: known are pets-lt99"),
        (["--only", "frozen", "--without", "drö"], "--without drö: known are 'erm', 'la', 'mr2'"),
    ],
)
def test_bad_input_is_one_clear_line(words, said, capsys):
    with pytest.raises(SystemExit) as error:
        evidence.main(words)
    assert error.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_every_part_has_its_table_and_every_study_its_erm():
    assert {path.stem for path in (ROOT / "recipes" / "evidence").glob("*.yaml")} == set(PARTS)
    for study in (s for part in PARTS for s in studies(part)):
        assert study.rows[0].content["method"] == "erm"
        assert study.data in (*FOLDERS, "digits")


def test_what_the_project_publishes_can_be_read():
    published = Published(ROOT / "results")
    known = {f"{study.part}-{study.name}": study for part in PARTS for study in studies(part)}
    for path in published.studies():
        study = known[path.stem]
        found = published.of(study.part, study.name)
        assert found is not None
        assert all(row.correct.shape[1] == sum(found.tested) for row in found.rows.values())
