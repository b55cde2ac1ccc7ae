"""The page in a real browser: it stays inside its file, answers clicks and keys, and keeps names as text."""

import json
import time

import pytest

from probe.report.html import look_first, page, thumbnails
from probe.system.safe_text import printable

EVIL = "</script><script>alert(1)</script>"
NAMES = ["Abyssinian", EVIL, "a & b", 'quo"te', "<img src=x onerror=alert(2)>", "{{7*7}}", "line\u2028end"]


@pytest.fixture(scope="module")
def written(tmp_path_factory, simulate):
    """The page of twelve classes, some with hostile names, and its thumbnails."""
    names = NAMES + [f"class {k}" for k in range(len(NAMES), 12)]
    result = simulate(12, names=names)
    pixel = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
    ids = [i for c in result["diagnostics"]["confusions"] for i in (*c["ids"], *c["predicted_ids"])]
    trained = [thumbnails.key(i["split"], i["id"]) for i in look_first.shown_images(result["diagnostics"])]
    small = dict.fromkeys([*ids, *trained], pixel) | {ids[0]: "javascript:alert(3)"}
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.render(result, thumbnails=small), encoding="utf-8")
    return path, result


@pytest.fixture
def opened(browser, written):
    browser.open(written[0])
    return browser


def first_column(browser, shown_only=False):
    rows = "[...document.querySelectorAll('#classes tbody tr')]"
    return browser.run(
        f"{rows}{'.filter(r => !r.hidden)' if shown_only else ''}.map(r => r.cells[0].textContent)"
    )


def test_it_opens_without_console_error_and_without_any_request(opened, written):
    assert opened.console == []
    assert [r for r in opened.requests if not r.startswith("data:")] == [written[0].as_uri()]


DRAWN = "[...document.querySelectorAll('{}.chart')].map(c => [c.id, c.querySelectorAll('svg').length])"


def test_every_chart_is_drawn_and_a_folded_one_when_it_is_unfolded(opened):
    charts = dict(opened.run(DRAWN.format("#accuracy ~ .panels ")))
    assert len(charts) == 6
    assert set(charts.values()) == {1}, charts
    folded = dict(opened.run(DRAWN.format("details.panel ")))
    assert len(folded) == 25
    assert set(folded.values()) == {0}
    opened.run("document.querySelectorAll('details.panel').forEach(d => { d.open = true; })")
    opened.wait("[...document.querySelectorAll('.chart')].every(c => c.querySelectorAll('svg').length === 1)")
    assert opened.console == []
    marks = opened.run("document.querySelectorAll('#chart-class-accuracy path').length")
    assert marks > 2


def test_every_diagnostic_has_its_verdict_in_one_line(opened):
    lines = opened.run(
        "[...document.querySelectorAll('details.panel > summary')]"
        ".map(s => [...s.children].map(c => c.textContent))"
    )
    assert all(len(title) > 3 and len(said) > 5 for title, said in lines), lines
    (verdict,) = (said for title, said in lines if title == "Representation or classifier?")
    assert "k-NN" in verdict


def test_the_conclusion_comes_first_and_the_command_to_run_it_again_is_one_line(opened, written):
    from probe.report.text.conclusion import conclusion

    first = opened.run(
        "[...document.querySelector('main').children[0].querySelectorAll('.lead p')].map(p => p.textContent)"
    )
    told = [sentence.replace("`", "") for sentence in conclusion(written[1])]
    assert [sentence.replace("\N{NO-BREAK SPACE}", " ") for sentence in first] == [printable(s) for s in told]
    assert opened.run("document.querySelector('#reproduce + pre').textContent") == "probe run recipe.yaml"
    assert opened.run("document.querySelectorAll('#reproduce ~ details[open]').length") == 0


def test_a_mistake_is_shown_beside_the_class_it_was_mistaken_for(opened):
    pairs = opened.run(
        "[...document.querySelectorAll('.sides')]"
        ".map(s => [...s.children].map(c => c.querySelectorAll('img').length))"
    )
    assert pairs
    assert any(len(sides) == 2 and min(sides) > 0 for sides in pairs)
    assert opened.run("[...document.querySelectorAll('.sides img')].every(i => i.clientWidth >= 90)")


def test_hostile_names_stay_text(opened):
    assert EVIL in first_column(opened)
    assert opened.run("document.querySelectorAll('img[src=\"x\"]').length") == 0
    assert opened.run("[...document.images].every(i => i.src.startsWith('data:image/'))")
    assert (
        opened.run("document.querySelectorAll('script').length") == 4
    )  # data, library as text, page, library
    opened.run("document.querySelector('details[data-chart=\"class-accuracy\"] summary').click()")
    opened.wait("document.querySelector('details[data-chart=\"class-accuracy\"] table')")
    cells = opened.run(
        "[...document.querySelectorAll('details[data-chart=\"class-accuracy\"] td')].map(c => c.textContent)"
    )
    assert EVIL in cells


def test_classes_to_look_at_first_are_shown_with_their_reasons_and_images(opened, written):
    rows = written[1]["diagnostics"]["look_first"]["classes"]
    shown = opened.run(
        "[...document.querySelectorAll('.look > li')].map(c => [c.querySelector('strong').textContent, "
        "c.querySelector('.reason').textContent, c.querySelectorAll('img').length])"
    )
    assert [name for name, _, _ in shown] == [printable(row["name"]) for row in rows]
    assert [said.replace("\xa0", " ") for _, said, _ in shown] == [printable(row["text"]) for row in rows]
    pictures = [len(r["suspects"]["images"]) + 2 * len(r["near_duplicates"][:2]) for r in rows]
    assert [number for _, _, number in shown] == pictures
    assert min(pictures) > 0


def test_clicking_a_heading_sorts_by_it_and_clicking_again_turns_the_order(opened, written):
    accuracy = {printable(r["name"]): r["accuracy"] for r in written[1]["test"]["by_class"]}
    click = "[...document.querySelectorAll('#classes th button')].find(b => b.textContent === '{}').click()"
    opened.run(click.format("accuracy %"))
    values = [accuracy[name] for name in first_column(opened)]
    assert values == sorted(values, reverse=True)
    opened.run(click.format("accuracy %"))
    values = [accuracy[name] for name in first_column(opened)]
    assert values == sorted(values)
    states = opened.run(
        "[...document.querySelectorAll('#classes th[aria-sort]')].map(c => c.getAttribute('aria-sort'))"
    )
    assert states.count("ascending") == 1
    assert states.count("none") == len(states) - 1
    opened.run(click.format("class"))
    names = opened.run("[...document.querySelectorAll('#classes tbody tr')].map(r => r.cells[0].textContent)")
    assert names.index("class 10") > names.index("class 9")  # numbers inside names count as numbers


def test_the_keyboard_sorts_and_searches(opened):
    opened.run("document.querySelector('#search').focus()")
    opened.type("CLASS 1")
    assert sorted(first_column(opened, shown_only=True)) == ["class 10", "class 11"]
    assert opened.run("document.querySelector('#found').textContent") == "2 of 12 classes"
    before = first_column(opened)
    for _ in range(2):  # from the search field over the table's region to its first heading
        opened.press("Tab")
    assert opened.run("document.activeElement.textContent") == "class"
    opened.press("Enter")
    after = first_column(opened)
    assert after != before
    assert sorted(after) == sorted(before)


def test_searching_finds_hostile_names_and_groups(opened):
    opened.run("document.querySelector('#search').focus()")
    opened.type("<script>")
    assert first_column(opened, shown_only=True) == [EVIL]
    opened.run("document.querySelector('#search').value = ''")
    opened.type("hard")
    assert len(first_column(opened, shown_only=True)) == 4


def test_a_screen_reader_finds_headings_labels_and_tables(opened):
    assert opened.run("document.documentElement.lang") == "en"
    assert opened.run("document.querySelectorAll('h1').length") == 1
    assert opened.run(
        "[...document.querySelectorAll('.chart')].every(c => c.getAttribute('aria-label').length > 20)"
    )
    assert opened.run("[...document.images].every(i => i.alt.length > 0)")
    named = "s => s.ariaLabel || document.getElementById(s.getAttribute('aria-labelledby'))"
    assert opened.run(f"[...document.querySelectorAll('section')].every({named})")
    assert opened.run("document.querySelector('label[for=search]') !== null")
    assert opened.run("document.querySelectorAll('#classes tbody th[scope=row]').length") == 12
    rows = "document.querySelector('details[data-chart=\"group-gains\"] summary').click()"
    opened.run(rows)
    opened.wait("document.querySelectorAll('details[data-chart=\"group-gains\"] tbody tr').length === 5")


def contrast(foreground, background):
    def luminance(colour):
        parts = [int(v) / 255 for v in colour[4:-1].split(",")]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_are_both_readable(browser, written, dark):
    browser.open(written[0], dark=dark)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    paper = browser.run(style.format("body", "backgroundColor"))
    assert (contrast("rgb(0,0,0)", paper) < 3) == dark
    for selector in ("body", ".sub", ".note", ".better, .worse, .unclear", "nav a"):
        assert contrast(browser.run(style.format(selector, "color")), paper) >= 4.5, selector
    assert browser.run("document.querySelector('.chart').dataset.drawn") == ("dark" if dark else "light")
    assert browser.console == []


def test_changing_the_colours_redraws_the_charts(opened):
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    opened.wait("[...document.querySelectorAll('.panels .chart')].every(c => c.dataset.drawn === 'dark')")


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_sticks_out_at_the_side(browser, written, width):
    browser.open(written[0], width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [400, 1280])
def test_no_bar_runs_under_its_number(browser, written, width):
    browser.open(written[0], width=width)
    ends = browser.run(
        "[...document.querySelectorAll('.bar')].map(b => [...b.children].map(c => c.getBoundingClientRect()))"
        ".map(([bar, number]) => [bar.right, number.left])"
    )
    assert len(ends) == 12
    assert all(bar <= number for bar, number in ends)


def test_every_group_has_its_accuracy_calibration_and_gain(opened, written):
    groups = written[1]["test"]["groups"]
    cells = opened.run(
        "[...document.querySelectorAll('#accuracy ~ .scroll tbody tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[0] for row in cells] == ["easy", "medium", "hard"]  # one size of class: no groups by size
    for row, group in zip(cells, groups.values(), strict=True):
        assert row[3] == f"{100 * group['accuracy']:.1f}"
        assert row[5] == f"{100 * group['ece']:.1f}"
        assert ": " in row[6]  # a gain and its verdict
    heading = opened.run("[...document.querySelectorAll('#accuracy ~ .scroll thead th')].at(-1).textContent")
    assert heading.startswith("gain over erm")


def test_it_prints_in_light_colours(browser, written):
    browser.open(written[0], dark=True)
    pdf = browser.call("Page.printToPDF", printBackground=False)["data"]
    assert pdf.startswith("JVBER")  # %PDF in base64
    browser.wait(
        "document.querySelector('.chart').dataset.drawn === 'dark'"
    )  # and the screen gets its own back
    assert browser.console == []


def test_a_thousand_classes_stay_usable(browser, simulate, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page.render(simulate(1000, per_class=5, seeds=1)), encoding="utf-8")
    assert path.stat().st_size < 6e6
    browser.open(path)
    paint = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 2000
    begin = time.perf_counter()
    browser.run("document.querySelector('#search').focus()")
    browser.type("class 99")
    assert browser.run("document.querySelector('#found').textContent") == "10 of 1000 classes"
    browser.run("document.querySelectorAll('#classes th button')[0].click()")
    assert time.perf_counter() - begin < 2
    assert browser.console == []


def test_all_methods_of_the_accuracy_curve_share_one_order_of_classes(written):
    from probe.report.charts.results import accuracy_by_class, classes_by_ease

    result = written[1]
    places = {}
    for rank, name, *_, method in accuracy_by_class(result).rows:
        places.setdefault(method, {})[rank] = name
    assert len(places) == 2
    assert len({json.dumps(order) for order in places.values()}) == 1
    assert list(places["erm"].values()) == classes_by_ease(result)
    alone = [row[3] for row in accuracy_by_class({**result, "reference": None, "versus": None}).rows]
    assert alone == sorted(alone, reverse=True)
