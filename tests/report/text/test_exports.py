"""A comparison as CSV, Markdown, LaTeX and a page: right numbers, and names that stay names."""

import csv
import io
import json
import re

import pytest
import vl_convert
from rich.console import Console

from probe.report.charts.base import Chart, shade
from probe.report.html import comparison as comparison_page
from probe.report.text import comparison as comparison_terminal
from probe.report.text import comparison_conclusion, exports, published
from probe.runs import table as comparing


def statistic(accuracy, gain=None, clear=False):
    ci = [accuracy - 0.01, accuracy + 0.01]
    if gain is None:
        return {"accuracy": accuracy, "ci": ci, "gain": None, "relative": None}
    block = {"mean": gain, "ci": [gain - 0.01, gain + 0.01], "p": 0.001, "p_holm": 0.008, "clear": clear}
    return {"accuracy": accuracy, "ci": ci, "gain": block, "relative": gain / (accuracy - gain)}


def row(data, backbone, method, *gains):
    values = (0.752, 0.911, 0.783, 0.564)
    names = ("overall", "easy", "medium", "hard")
    entries = [
        statistic(a + (g or 0), g, bool(g) and abs(g) > 0.01)
        for a, g in zip(values, gains or (None,) * 4, strict=True)
    ]
    return {
        "data": data,
        "backbone": backbone,
        "method": method,
        "seeds": 5,
        "run": f"{backbone}-{method}",
        "reused": True,
        "statistics": dict(zip(names, entries, strict=True)),
    }


@pytest.fixture(scope="module")
def comparison():
    rows = [
        row("pets", "clip-rn50", "erm"),
        row("pets", "clip-rn50", "mr2", 0.017, 0.004, 0.014, 0.032),
        row("cars", "=cmd|'/c calc'!A1", "erm"),
        row("cars", "=cmd|'/c calc'!A1", "a_b & 50% </script>", -0.02, -0.03, 0.0, -0.001),
    ]
    failed = [{"data": "cars", "backbone": "moco", "method": "mr2", "error": "no weights | here"}]
    return json.loads(json.dumps(comparing.assemble(rows, "erm", failed)))


def test_the_table_has_the_papers_layout(comparison):
    text = exports.markdown(comparison)
    assert "| clip-rn50 | mr2 | 76.9 (+1.7\\*) | 91.5 (+0.4\\*) | 79.7 (+1.4\\*) | 59.6 (+3.2\\*) |" in text
    assert "| clip-rn50 | erm | 75.2 | 91.1 | 78.3 | 56.4 |" in text
    assert "+2.2 to +4.2" in text
    assert "failed: cars / moco / mr2: no weights \\| here" in text


def test_markdown_rows_keep_their_columns_whatever_the_names(comparison):
    lines = [line for line in exports.markdown(comparison).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}


def test_no_cell_of_the_csv_is_a_formula_and_numbers_stay_numbers(comparison):
    rows = list(csv.DictReader(io.StringIO(exports.csv(comparison))))
    assert len(rows) == 16
    assert not any(v.startswith(("=", "@", "+")) for r in rows for v in r.values())
    assert rows[8]["backbone"] == "'=cmd|'/c calc'!A1"
    hard = rows[7]
    assert (hard["statistic"], hard["verdict"]) == ("hard", "better")
    assert float(hard["accuracy"]) == pytest.approx(0.596)
    assert float(hard["gain"]) == pytest.approx(0.032)
    assert float(rows[12]["gain"]) == pytest.approx(-0.02)  # a negative number is no formula


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_every_way_to_begin_a_formula_is_quoted(name):
    assert exports.harmless(name).startswith("'")
    assert exports.harmless(f" {name}").startswith("'")  # spaces in front are no obstacle to a spreadsheet
    assert exports.harmless("plain") == "plain"
    assert exports.harmless(-0.5) == -0.5


def test_latex_is_escaped_and_balanced(comparison):
    text = exports.latex(comparison)
    assert r"a\_b \& 50\% \textless{}/script\textgreater{}" in text
    assert "76.9 (+1.7*)" in text
    assert "($-$2.0*)" in text
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert line.replace(r"\&", "").count("&") == 5
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_latex_uses_booktabs_and_shows_intervals(comparison):
    text = exports.latex(comparison)
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\hline")] == [
        1,
        2,
        1,
        0,
    ]
    assert r" &  & {\scriptsize [75.9, 77.9]} & {\scriptsize [90.5, 92.5]}" in text


def test_holm_is_applied_over_the_whole_table(comparison):
    gains = [s["gain"] for r in comparison["rows"] for s in r["statistics"].values() if s["gain"]]
    assert [g["p_holm"] for g in gains] == pytest.approx([0.008] * 8)  # eight gains of p = 0.001


def test_backbones_and_methods_are_ranked_by_hard_class_gain(comparison):
    ranking = comparison["ranking"]["method"]
    assert [r["name"] for r in ranking] == ["mr2", "a_b & 50% </script>"]
    assert (ranking[0]["clearly_better"], ranking[0]["clearly_worse"]) == (1, 0)
    assert comparison["ranking"]["backbone"][0]["name"] == "clip-rn50"


def backbones(first, second, gain, clear):
    """A block of `which_backbone`: two backbones on pets."""
    rows = [
        {"name": name, "run": name, "overall": {"accuracy": a, "ci": [a - 0.01, a + 0.01]}}
        for name, a in (("big", first), ("small", second))
    ]
    block = {"mean": gain, "ci": [gain - 0.01, gain + 0.01], "p_holm": 0.01, "clear": clear}
    pair = {"first": "big", "second": "small", "gain": block}
    return {"data": "my/pets", "method": "erm", "backbones": rows, "pairs": [pair]}


def test_the_headline_names_the_best_backbone_only_where_that_is_clear(comparison):
    clear = {**comparison, "backbones": [backbones(0.9, 0.86, 0.04, True)]}
    first, methods = comparison_conclusion.conclusion(clear)
    assert first == (
        "On pets, big is clearly the best backbone: 90.0 % (95 %: 89.0 to 91.0), +4.0 points over small "
        "(+3.0 to +5.0)."
    )
    assert methods == "Of 2 runs against erm, 1 is clearly better and 1 is clearly worse on hard classes."
    unclear = {**comparison, "backbones": [backbones(0.9, 0.899, 0.001, False)]}
    assert comparison_conclusion.conclusion(unclear)[0].startswith(
        "On pets, no backbone is clearly best: big has"
    )
    many = {**comparison, "backbones": [backbones(0.9, 0.86, 0.04, True)] * 4}
    assert comparison_conclusion.conclusion(many)[0] == (
        "Highest accuracy of 4 data sets: big on 4 (clearly above every other on 4)."
    )


def test_a_backbone_that_is_worse_is_never_ranked_first():
    """A large gain of a method on a weak backbone does not make the backbone the first choice."""
    rows = [row("pets", "weak", "erm"), row("pets", "weak", "mr2", 0.01, 0, 0, 0.09)]
    rows += [row("pets", "strong", "erm"), row("pets", "strong", "mr2", 0.01, 0, 0, 0.001)]
    for entry in rows[2:]:
        entry["statistics"]["overall"]["accuracy"] += 0.036
    found = comparing.assemble(rows, "erm")
    assert [r["name"] for r in found["ranking"]["backbone"]] == ["strong", "weak"]
    chart = comparison_page.hard_gains(found, [rows[1], rows[3]])
    assert [value[0].split(",")[0] for value in chart.rows] == ["strong", "weak"]
    console = Console(width=80, record=True, file=io.StringIO())
    comparison_terminal.show(found, "runs/compare-1a2b", console)
    ranked = console.export_text().partition("gain on hard")[2]
    assert ranked.index("strong") < ranked.index("weak")


def test_the_page_opens_with_which_backbone(browser, comparison, tmp_path):
    path = tmp_path / "comparison.html"
    block = backbones(0.9, 0.86, 0.04, True)
    shared = {"my/pets": "groups of small, cross-fitted on training images, for every backbone"}
    path.write_text(
        comparison_page.render({**comparison, "backbones": [block], "shared_groups": shared}),
        encoding="utf-8",
    )
    browser.open(path)
    assert browser.console == []
    assert browser.run("document.querySelectorAll('#chart-backbones svg').length") == 1
    headings = browser.run("[...document.querySelectorAll('h2')].map(h => h.id)")
    assert headings == ["which", "table", "gains", "failed"]
    cells = browser.run(
        "[...document.querySelectorAll('#which ~ .scroll tbody tr > *')].map(c => c.textContent)"
    )
    assert cells == ["big over small", "pets", "+4.0", "+3.0 to +5.0", "better"]
    assert "groups of small" in browser.run("document.querySelector('#which ~ .note').textContent")


def test_the_terminal_table_fits_eighty_columns(comparison):
    console = Console(width=80, record=True, file=io.StringIO())
    shown = {**comparison, "backbones": [backbones(0.9, 0.86, 0.04, True)]}
    comparison_terminal.show(shown, "runs/compare-1a2b", console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("On pets, big is clearly the best backbone")
    assert "big over small" in text
    assert "59.6 (+3.2*)" in text
    assert "+3.2 (+2.2 to +4.2)" in text
    assert "failed: cars / moco / mr2" in text


def test_the_page_of_a_comparison_opens_clean(browser, comparison, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page.render(comparison), encoding="utf-8")
    browser.open(path)
    assert browser.console == []
    assert browser.requests == [path.as_uri(), "data:,"][: len(browser.requests)]
    assert browser.run("document.querySelectorAll('.chart svg').length") == 2
    assert "a_b & 50% </script>" in browser.run("document.querySelector('main').textContent")
    browser.view(400, 900)
    assert browser.run("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("number", [2, 3, 5])
def test_every_group_has_a_shade_of_its_own(number):
    names = [f"group {i}" for i in range(number)]
    spec = {"mark": "bar", "encoding": {"x": {"field": "group", "type": "ordinal"}, "color": shade(names)}}
    svg = vl_convert.vegalite_to_svg(
        Chart("c", "t", "", {"group": "group"}, [[n] for n in names], spec).whole()
    )
    bars = re.findall(r'aria-roledescription="bar"[^>]*fill="([^"]+)"', svg)
    assert len(bars) == len(set(bars)) == number


def test_numbers_are_never_cut_at_eighty_columns():
    """Groups of your own can be many, and gains large: what does not fit is printed below."""
    names = ["overall", *(f"group number {i}" for i in range(6))]
    wide = [statistic(0.123, -0.456, clear=True) for _ in names]
    rows = [
        {**row("pets", "a-backbone-with-a-long-name", "dbm(margin=0.2, tau=0.5)-finetune"), "run": "r"},
    ]
    rows[0]["statistics"] = dict(zip(names, wide, strict=True))
    comparison = comparing.assemble(rows, "erm")
    console = Console(width=80, record=True, file=io.StringIO())
    comparison_terminal.show(comparison, "runs/compare-1a2b", console)
    text = console.export_text()
    assert text.count("12.3 (−45.6*)") == len(names)
    assert max(map(len, text.splitlines())) <= 80


def test_the_sensitivity_of_a_parameter_is_the_best_at_each_value_averaged_over_seeds(result):
    from probe.report.charts.curves import sensitivity
    from probe.report.charts.shapes import View

    chart = sensitivity(View(result))
    rows = {(name, value, statistic): score for name, value, score, statistic in chart.rows}
    assert rows["power", 1.0, "overall"] == pytest.approx(100 * (0.71 - 0.01))  # with the better lam, 0.1
    assert rows["lam", 0.2, "overall"] == pytest.approx(100 * (0.71 - 0.02))
    assert rows["power", 0.5, "hard"] == pytest.approx(55)  # 50 and 60 % in two seeds
    alone = {**result, "seeds": [{"seed": 0, "l2": 1.0}]}
    assert sensitivity(View(alone)) is None


def test_published_numbers_are_shown_as_printed():
    cell = {"accuracy": 0.5, "ci": [0.4, 0.6], "gain": None, "difference": {"mean": 0.0065, "ci": None}}
    row = {"run": "r", "statistics": {"a": {**cell, "published": 0.4935}, "b": {**cell, "published": 0.446}}}
    assert list(published.lines(row, ["a", "b"])) == [
        ("", ["50.0", "50.0"]),
        ("95 %", ["40.0 to 60.0", "40.0 to 60.0"]),
        ("published", ["49.35", "44.6"]),
        ("difference", ["+0.7", "+0.7"]),
    ]


@pytest.fixture
def beside_published(comparison):
    """The comparison with a paper's table: one row of ours, and one that cannot be run."""
    ours = {"accuracy": 0.769, "ci": [0.759, 0.779], "gain": None, "published": 0.7512}
    ours |= {"difference": {"mean": 0.0178, "ci": [0.0078, 0.0278]}}
    theirs = {"accuracy": None, "ci": None, "gain": None, "published": 0.802, "difference": None}
    about = {"ours": ["seeds"], "error": None, "why_not": None}
    rows = [
        {
            "title": "=MR & co",
            "run": "clip-rn50-mr2",
            "why_not": None,
            "statistics": {"overall": ours},
            **about,
        },
        {**about, "title": "Other_one", "run": None, "why_not": "no {x}", "statistics": {"overall": theirs}},
    ]
    named = {"name": "p/table1", "variant": "if100", "paper": "A & B, 2020", "table": "1", "title": "50 %"}
    return {**comparison, "tables": [{**named, "columns": ["overall"], "rows": rows}]}


def test_the_csv_has_a_line_for_each_published_number_whether_ours_was_run_or_not(
    beside_published, comparison
):
    rows = list(csv.DictReader(io.StringIO(exports.csv(beside_published))))
    before = list(csv.DictReader(io.StringIO(exports.csv(comparison))))
    assert rows[: len(before)] == before
    assert {row["table"] + row["published"] for row in before} == {""}
    mine, other = rows[len(before) :]
    assert (mine["table"], mine["method"], mine["statistic"]) == ("p/table1/if100", "'=MR & co", "overall")
    assert (mine["data"], mine["backbone"], mine["seeds"]) == ("pets", "clip-rn50", "5")
    numbers = ("accuracy", "published", "difference", "difference_low", "difference_high")
    assert [float(mine[key]) for key in numbers] == [0.769, 0.7512, 0.0178, 0.0078, 0.0278]
    assert (other["method"], other["published"], other["accuracy"]) == ("Other_one", "0.802", "")


def test_latex_has_the_published_numbers_below_ours(beside_published, comparison):
    text = published.latex(beside_published)
    assert r"=MR \& co & ours & 76.9 \\" in text
    assert r"=MR \& co & published & 75.12 \\" in text
    assert r"=MR \& co & difference & +1.8 \\" in text
    assert r"Other\_one & published & 80.2 \\" in text
    assert r"Other\_one: not available: no \{x\}" in text
    assert (text.count(r"\begin{tabular}"), text.count(r"\end{tabular}")) == (1, 1)
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert published.latex(comparison) == ""
