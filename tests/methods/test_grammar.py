"""A method is written in one way everywhere: name(inner, key=value)."""

import pytest
from click.testing import CliRunner

from probe import methods, recipe
from probe.cli import main
from probe.errors import UserError
from probe.methods import spelling
from probe.recipe import grammar
from probe.runs import compare
from probe.runs.naming import label, slug

WRITTEN = {
    "erm": {"name": "erm"},
    "mr2(lam=0.01)": {"name": "mr2", "lam": 0.01},
    "mr2(lam=1e-05)": {"name": "mr2", "lam": 1e-5},
    "drw(ldam)": {"name": "drw", "loss": "ldam"},
    "drw(ldam, after=0.7)": {"name": "drw", "loss": "ldam", "after": 0.7},
    "sam(mr2, adaptive=true, rho=0.1)": {"name": "sam", "loss": "mr2", "adaptive": True, "rho": 0.1},
    "drw(ldam(max_margin=0.3), after=0.7)": {
        "name": "drw",
        "loss": {"name": "ldam", "max_margin": 0.3},
        "after": 0.7,
    },
    "ef(frequency=[0.5, 0.25])": {"name": "ef", "frequency": [0.5, 0.25]},
}


@pytest.mark.parametrize(("written", "content"), WRITTEN.items())
def test_what_is_written_and_what_is_stored_are_one(written, content):
    assert grammar.parse(written) == content
    assert spelling.spelled(content) == written
    assert recipe.MethodConfig.model_validate(written).model_dump() == content


def written(r):
    return spelling.spelled(r.method.model_dump())


def test_spaces_order_and_a_named_inner_loss_change_nothing():
    for text in ("sam( mr2,rho = 0.1 )", "sam(rho=0.1, loss=mr2)", " sam(mr2, rho=0.1) "):
        assert spelling.spelled(grammar.parse(text)) == "sam(mr2, rho=0.1)"


def test_a_loss_given_by_its_own_key_means_the_same():
    base = {"finetune": True}
    whole = recipe.build({**base, "method": "drw(ldam, after=0.7)"})
    words = ["method.name=drw", "method.loss=ldam", "method.after=0.7"]
    assert recipe.build(recipe.override(dict(base), words)).digest == whole.digest
    assert recipe.build(recipe.override(dict(base), ["method=drw(ldam)", "method.after=0.7"])) == whole
    inner = ["method=drw(ldam, after=0.7)", "method.loss.max_margin=0.3"]
    assert written(recipe.build(recipe.override(dict(base), inner))) == "drw(ldam(max_margin=0.3), after=0.7)"
    assert recipe.build({**base, "method": {"name": "drw(ldam)", "after": 0.7}}) == whole
    assert recipe.build({"method": {"name": "sam", "loss": "mr2(lam=0.5)"}}).method.params["loss"] == {
        "name": "mr2",
        "lam": 0.5,
    }


def test_the_flag_replaces_a_recipe_files_whole_method(tmp_path):
    content = {"method": {"name": "drw", "loss": "dbm", "after": 0.8}}
    recipe.place(content, "method.name", "sam(mr2)")
    assert written(recipe.build(content)) == "sam(mr2)"


def test_a_wrapper_carries_its_loss_in_every_name():
    r = recipe.build({"method": "drw(ldam, after=0.7)", "finetune": True})
    assert label(r) == "drw(ldam, after=0.7)-finetune"
    assert "-drw-ldam-finetune-" in slug(r)
    plain = recipe.build({"method": "sam", "solver": "sgd"})
    assert label(plain) == "sam(erm)-sgd"
    assert "-sam-erm-sgd-" in slug(plain)


def test_parameters_do_not_rename_the_folders_of_plain_losses():
    assert "-mr2-" in slug(recipe.build({"method": "mr2(lam=0.05)"}))
    assert "lam" not in slug(recipe.build({"method": "mr2(lam=0.05)"}))


def test_a_method_is_made_as_it_is_written():
    made = methods.make("sam(mr2(lam=0.5), rho=0.1)", {}, num_classes=3)
    assert (made.loss.lam, made.rho) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("drw(ldam", "not closed"),
        ("drw((ldam)", "not closed"),
        ("drw(ldam))", "closes nothing"),
        ("drw(ldam)x", "closes nothing"),
        ("drw)", "there is no method.*did you mean"),
        ("drw(ldam, 0.7)", '"0.7" has no key'),
        ("drw(ldam, after=)", '"after" has no value'),
        ("drw(ldam, after=1, after=2)", '"after" is given twice'),
        ("(ldam)", "a name is missing"),
        ("a(" * 50_000, "nested too deeply"),
        ("drv(ldam)", 'there is no method "drv".*drw'),
        ("drw(ldma)", 'there is no loss "ldma".*ldam'),
        ("drw(ldam, afer=0.7)", 'drw has no parameter "afer".*after'),
        ("drw(ldam(max_margn=1))", 'ldam has no parameter "max_margn".*max_margin'),
        ("sam(drw(ldam))", "sam wraps a loss, and drw is not a loss"),
        ("mr2(ldam)", "mr2 is a loss and wraps none.*sam"),
    ],
)
def test_mistakes_are_one_line_with_the_way_out(written, says):
    with pytest.raises(UserError, match=says) as caught:
        methods.make(written, {}, num_classes=3, class_counts=[3, 2, 1])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    answer = CliRunner().invoke(main, ["run", "--solver", "sgd", "--method", written])
    assert answer.exit_code == 2
    assert answer.stderr.count("\n") == 1


def test_a_grid_keeps_parentheses_together():
    named = ["erm drw(ldam) sam(mr2, rho=0.1)", "mr2(lam=0.01)"]
    assert grammar.listed(named) == ["erm", "drw(ldam)", "sam(mr2, rho=0.1)", "mr2(lam=0.01)"]
    grid = compare.Grid(["effnet-lite0"], ["digits"], grammar.listed(named), ["finetune=true"])
    assert [label(r) for r in grid.recipes()] == [
        "erm-finetune",
        "drw(ldam)-finetune",
        "sam(mr2, rho=0.1)-finetune",
        "mr2(lam=0.01)-finetune",
    ]


def test_an_open_parenthesis_in_a_grid_is_one_line():
    words = ["compare", "--backbones", "effnet-lite0", "--data", "digits", "--methods", "erm drw(ldam mr2"]
    answer = CliRunner().invoke(main, words)
    assert answer.exit_code == 2
    assert "not closed" in answer.stderr
    assert answer.stderr.count("\n") == 1
