"""The terminal's tables fit 80 columns and show names as they are, whatever those are."""

import io
from contextlib import redirect_stdout

import pytest
from rich.cells import cell_len

from probe.report.text import format, run

LONG = "a class name that is far too long for any table on a terminal of eighty columns"
NAMES = [
    LONG,
    LONG.replace(" ", "_"),
    "とても長いクラス名は端末では二倍の幅を取るのでよく表を壊します",
    "[red]alarm[/red] :dog:",
    "tab\there",
    "\x1b[31mred",
]


@pytest.fixture(scope="module")
def shown(simulate):
    """A run's table with names of every kind, as a terminal of 80 columns would show it."""
    result = simulate(6, names=NAMES)
    result["recipe"]["solver"] = {"name": "lbfgs", "l2": None}
    result["data"]["name"] = LONG
    for block in (result["test"]["groups"], result["versus"]["gain"]):
        block[f"{LONG} group"] = block.pop("hard")
    folder = f"runs/{LONG.replace(' ', '-')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        with redirect_stdout(io.StringIO()) as out:
            run.show(result, folder)
    return out.getvalue().splitlines(), folder


def test_a_run_that_begins_with_another_seed_says_so():
    result = {"seeds": [{}, {}, {}], "recipe": {"first_seed": 2}}
    assert format.seeds(result) == "seeds 2 to 4"
    assert format.seeds({**result, "seeds": [{}]}) == "seed 2"
    assert format.seeds({**result, "recipe": {}}) == "3 seeds"


def test_every_line_fits_and_the_path_is_one_word(shown):
    lines, folder = shown
    assert lines[-1] == f"saved: {folder}"
    assert max(map(cell_len, lines[:-1])) <= 80


def test_the_numbers_stand_beside_the_names(shown):
    lines, _ = shown
    heading = next(i for i, line in enumerate(lines) if "worst classes" in line)
    assert lines[heading].split() == ["%", "worst", "classes", "%", "best", "classes"]
    for line in lines[heading + 2 : heading + 5]:
        assert float(line.split()[0]) <= 100
        assert line.count("…") <= 2


def test_classes_to_look_at_first_have_a_likely_reason_each(simulate):
    result = simulate(18)
    result["recipe"]["solver"] = {"name": "lbfgs", "l2": None}
    with redirect_stdout(io.StringIO()) as out:
        run.show(result, "runs/one")
    lines = out.getvalue().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("look at these first"))
    found = result["diagnostics"]["look_first"]
    for row in found["classes"][: run.LOOK_FIRST]:
        assert any(line.startswith(row["name"]) for line in lines[start + 2 :])
    assert not any(line.startswith(found["classes"][5]["name"]) for line in lines[start:])
    assert any("forecast of difficulty" in line for line in lines[start:])


def test_names_are_never_markup_or_control_codes(shown):
    text = "\n".join(shown[0])
    assert "[red]alarm[/red] :dog:" in text
    assert "\x1b" not in text
    assert "\t" not in text


def test_gains_of_any_size_and_their_verdicts_are_shown_whole(simulate):
    result = simulate(6)
    result["recipe"]["solver"] = {"name": "lbfgs", "l2": None}
    for gain in result["versus"]["gain"].values():
        gain |= {"mean": -0.72, "ci": [-1.0, 0.4429], "clear": False}
    with redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        run.show(result, "runs/x")
    rows = [line for line in out.getvalue().splitlines() if line.startswith("overall")]
    assert [row.split("  ")[-1].strip() for row in rows] == ["no clear change"]
    assert "−72.0 (−100.0..+44.3)" in rows[0]
    assert "…" not in rows[0]
