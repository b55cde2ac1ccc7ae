"""A range of a parameter stands for its values, one by one; what cannot be a range is one line."""

import pytest

from probe import recipe
from probe.errors import UserError
from probe.methods import ranges, spelling
from probe.recipe import grammar


def points(written):
    return [
        spelling.spelled(p.model_dump()) for p in ranges.points(recipe.MethodConfig.model_validate(written))
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("la(tau=1)", ["la(tau=1)"]),
        ("la(tau=[0, 0.5, 1])", ["la(tau=0)", "la(tau=0.5)", "la(tau=1)"]),
        ("la(tau=[2])", ["la(tau=2)"]),
        (
            "dro(adjustment=[0, 1], sharpness=[4, 16])",
            [f"dro(adjustment={a}, sharpness={s})" for a in (0, 1) for s in (4, 16)],
        ),
        (
            "sam(la(tau=[0, 1]), adaptive=[false, true])",
            [f"sam(la(tau={t}), adaptive={a})" for t in (0, 1) for a in ("false", "true")],
        ),
        ("ef(frequency=[0.5, 0.25])", ["ef(frequency=[0.5, 0.25])"]),  # a list is its value
    ],
)
def test_a_range_is_spelled_back_and_stands_for_its_values(written, expected):
    assert spelling.spelled(grammar.understood(written)) == written
    assert sorted(points(written)) == sorted(expected)
    assert len(set(points(written))) == len(expected)


def test_the_first_value_comes_first_and_the_first_range_is_outermost():
    assert points("dro(sharpness=[16, 4], adjustment=[0, 1])")[:2] == [
        "dro(adjustment=0, sharpness=16)",
        "dro(adjustment=1, sharpness=16)",
    ]


def test_a_range_can_be_given_as_a_word_of_the_command_line():
    built = recipe.build(recipe.override({"method": "la"}, ["method.tau=[0,0.5]"]))
    assert [p.params for p in ranges.points(built.method)] == [{"tau": 0}, {"tau": 0.5}]
    assert ranges.chosen(built.method, {"tau": 0.5}) == {"tau": 0.5}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"name": "la", "tau": []}, "the range of tau is empty"),
        ({"name": "la", "tau": [0, "x"]}, "la: tau must be a number, not 'x'"),
        ({"name": "la", "tau": [0, [1]]}, "la: tau must be a number, not [1]"),
        ({"name": "cb", "beta": [0, 2]}, "cb: beta must be at most"),
        ({"name": "la", "tau": [1, 1]}, "has a value twice"),
        ({"name": "sam", "loss": ["erm", "la"]}, "sam: loss takes no range"),
        ({"name": "dro", "sharpness": list(range(1, 30)), "adjustment": list(range(30))}, "870 combinations"),
    ],
)
def test_what_is_no_range_is_one_line(content, line):
    with pytest.raises(UserError) as caught:
        ranges.points(recipe.MethodConfig.model_validate(content))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
