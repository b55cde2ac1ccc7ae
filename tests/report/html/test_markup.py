"""Whatever a name holds, it stays text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.report.html import markup
from probe.report.text import format

hostile = st.text(
    alphabet=st.sampled_from(list("<>&\"'/!-scriptSCRIPT\u2028\u2029\\ ")), max_size=40
) | st.text(max_size=40)


@given(hostile)
def test_json_in_a_script_means_the_same_and_cannot_end_it(name):
    written = markup.json_in_script({"name": name})
    assert json.loads(written) == {"name": name}
    assert not set(written) & set("<>&\u2028\u2029")


@given(hostile)
def test_text_holds_no_markup(name):
    assert not set(markup.text(name)) & set("<>\"'")
    assert markup.element("p", markup.text(name), title=name).count("<") == 2


def test_elements_leave_out_what_is_not_given():
    assert (
        markup.element("td", "1", cls="number", data_value="", scope=None)
        == '<td class="number" data-value="">1</td>'
    )


def test_a_clear_gain_never_looks_like_nothing():
    assert format.gain_interval((0.0003, 0.004)) == "+0.03 to +0.40"
    assert format.gain_interval((-0.004, -0.00002), 2, "..") == "−0.400..−0.002"
    assert format.gain_interval((-0.0003, 0.004)) == "0.0 to +0.4"  # it holds 0, and looks it
    assert format.gained({"mean": 0.0004, "clear": True}) == "+0.04"
    assert format.gained({"mean": 0.0004, "clear": False}) == "0.0"
    assert format.gained({"mean": None, "clear": False}) == "–"


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed"), (2, "two seeds"), (3, None)])
def test_too_few_seeds_are_said_with_or_without_a_comparison(seeds, said):
    for versus in (None, {"seeds": seeds}):
        remarks = format.remarks({"seeds": [{}] * seeds, "versus": versus})
        assert [r.startswith(said or "") for r in remarks] == [True] * bool(said)


def test_seeds_that_cannot_differ_are_not_called_too_few():
    (said,) = format.remarks({"seeds": [{}], "recipe": {"seeds": 5}})
    assert said.startswith("every seed gives the same head")


def test_numbers_as_people_read_them():
    assert format.percent(0.7374) == "73.7"
    assert format.percent(None) == "–"
    assert format.signed(0.02) == "+2.0"
    assert format.signed(-0.02) == "−2.0"
    assert format.signed(-0.00001) == "0.0"
    assert format.gain_interval((-0.01, 0.02)) == "−1.0 to +2.0"
    assert format.verdict({"mean": -0.1, "clear": True}) == "worse"
    assert format.verdict({"mean": 0.1, "clear": False}) == "no clear change"
    assert (format.plural(1, "class"), format.plural(1000, "class")) == ("1 class", "1,000 classes")
