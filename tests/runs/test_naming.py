"""The command that a report shows runs the same recipe again."""

import shlex

import pytest

from probe.cli.options import RECIPE_FLAGS
from probe.recipe import build, override
from probe.runs.naming import command


def read(words):
    """A command's words as the command line reads them."""
    keys = {flag: (key, extra) for flag, key, _, extra in RECIPE_FLAGS}
    content, rest = {}, iter(words)
    for word in rest:
        if word in keys:
            key, extra = keys[word]
            word = f"{key}={'true' if extra.get('is_flag') else next(rest)}"
        override(content, [word])
    return build(content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {
            "data": {"name": "my data/pets", "imbalance": 20},
            "method": "drw(ldam, after=0.7)",
            "finetune": True,
        },
        {"backbone": {"name": "a", "also": [{"name": "b"}]}, "groups": "paper", "seeds": 3, "method": "erm"},
        {"solver": {"name": "sgd", "l2": 0.01}, "train": {"epochs": 2}, "features": {"views": "flip"}},
    ],
)
def test_the_command_gives_the_same_recipe(content):
    recipe = build(content)
    first, second, *words = shlex.split(command(recipe))
    assert (first, second) == ("probe", "run")
    assert read(words).digest == recipe.digest


def test_defaults_are_not_repeated():
    assert (
        command(build({"data": {"name": "pets"}}))
        == "probe run --backbone effnet-lite0 --data pets --method mr2"
    )
