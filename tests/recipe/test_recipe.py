"""A recipe says exactly what it means, or why it cannot."""

import hashlib
import json
from functools import reduce

import pytest

from probe import recipe
from probe.errors import UserError
from probe.recipe import schema
from probe.runs.naming import slug


def test_words_stand_for_names_and_defaults_fill_the_rest():
    r = recipe.build({"backbone": "clip-rn50", "data": "food101", "method": {"name": "mr2", "lam": 0.05}})
    assert (r.backbone.name, r.data.name, r.method.name, r.solver.name) == (
        "clip-rn50",
        "food101",
        "mr2",
        "lbfgs",
    )
    assert r.method.params == {"lam": 0.05}


def test_overrides_reach_into_a_recipe():
    content = recipe.override({"method": "mr2", "seeds": 1}, ["seeds=5", "method.lam=0.05", "solver.l2=1e-3"])
    r = recipe.build(content)
    assert (r.seeds, r.method.name, r.method.params, r.solver.l2) == (5, "mr2", {"lam": 0.05}, 1e-3)


def test_a_saved_recipe_runs_again_as_it_was(tmp_path):
    r = recipe.build({"data": "pets", "method": {"name": "mr2", "lam": 0.1}, "seeds": 3})
    (tmp_path / "recipe.yaml").write_text(r.to_yaml())
    again = recipe.build(recipe.read(tmp_path / "recipe.yaml"))
    assert again == r
    assert again.digest == r.digest


def test_only_heads_that_are_trained_otherwise_than_before_have_new_digests():
    """Stored runs of linear heads keep their names; those of cosine heads and adapters are not reused."""
    runs = {h: recipe.build({"solver": "sgd", "train": {"head": h}}) for h in ("linear", "cosine", "adapter")}
    assert [h for h, r in runs.items() if r.digest == _before(r)] == ["linear"]


def _before(r):
    """The digest without what came later."""
    content = r.model_dump()
    for key in schema.LATER:
        *parents, last = key.split(".")
        del reduce(dict.__getitem__, parents, content)[last]
    content["train"]["channels_last"] = False
    del content["device"], content["solver"]["tf32"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def test_the_digest_follows_every_setting():
    base = recipe.build({})
    changes = [{"seeds": 2}, {"method": {"name": "mr2", "lam": 0.3}}, {"solver": {"l2": 2}}, {"data": "pets"}]
    assert len({base.digest, *(recipe.build(c).digest for c in changes)}) == 5


def test_a_slug_is_a_safe_file_name():
    r = recipe.build({"backbone": "timm:a/b c", "data": "../some/où $(x)", "method": "mr2"})
    assert slug(r).startswith("timm-a-b-c-o-x-mr2-")


def test_groups_come_from_a_ranking_a_file_or_a_run():
    assert recipe.build({}).groups == "crossfit"
    assert recipe.build({"groups": "classes/pets.json"}).groups == "classes/pets.json"
    run = recipe.build({"groups": {"reference": "runs/erm"}})
    assert recipe.build({"groups": "runs/erm"}) == run
    assert recipe.build({"groups": "runs/erm/result.json"}).groups.reference == "runs/erm/result.json"
    assert recipe.build(run.model_dump()).digest == run.digest != recipe.build({}).digest
    assert recipe.build(recipe.override({}, ["groups.reference=runs/erm"])) == run


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"groups": "crosfit"}, 'did you mean "crossfit"'),
        ({"groups": {"referense": "runs/a"}}, "{reference: RUN FOLDER}"),
        ({"groups": 3}, "write crossfit, paper, many/medium/few, head/torso/tail, a JSON file"),
        ({"metod": "mr2"}, 'unknown key "metod"; did you mean "method"'),
        ({"solver": {"l3": 1}}, 'unknown key "solver.l3"; did you mean "l2"'),
        ({"seeds": 0}, "seeds: .*greater than 0.*given 0"),
        ({"seeds": "many"}, "seeds: .*integer"),
        ({"solver": "newton"}, "solver.name: .*lbfgs"),
        ({"data": {"val_fraction": 2}}, "val_fraction"),
        ({"data": [1]}, "data: "),
    ],
)
def test_mistakes_are_one_line(content, message):
    with pytest.raises(UserError, match=message) as caught:
        recipe.build(content)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_in_one_line():
    content = {
        "metod": "mr2",
        "method": "drw(ldam",
        "solver": {"l3": 1, "tol": 7},
        "train": {"micro_batch": -1, "wise": [2, 3]},
        "groups": "crosfit",
        "data": {"imbalance": float("nan")},
    }
    with pytest.raises(UserError) as caught:
        recipe.build(content)
    line = str(caught.value)
    assert line.startswith("recipe: 8 mistakes: (1) ")
    assert "\n" not in line
    for told in (
        'unknown key "metod"; did you mean "method"',
        'method "drw(ldam": a parenthesis is not closed',
        'unknown key "solver.l3"; did you mean "l2"',
        "solver.tol: ",
        "train.micro_batch",  # told once, though it may be a number or a word
        "train.wise.0: ",
        'groups: "crosfit" is not a ranking; did you mean "crossfit"',
        "data.imbalance: nan is not a finite number",
    ):
        assert line.count(told) == 1


def test_one_mistake_reads_as_it_always_did():
    with pytest.raises(UserError) as caught:
        recipe.build({"seeds": 0})
    assert str(caught.value) == "recipe: seeds: Input should be greater than 0 (given 0)"
    with pytest.raises(UserError, match=r'^method "drw\(ldam": a parenthesis is not closed'):
        recipe.build({"method": "drw(ldam"})


def test_a_file_that_is_no_recipe_does_not_fill_the_screen():
    with pytest.raises(UserError, match=r"^recipe: 2000 mistakes: .*; and 1990 more$") as caught:
        recipe.build({f"k{i}": i for i in range(2000)})
    assert len(str(caught.value)) < 2000


def test_every_malformed_override_is_named():
    with pytest.raises(UserError, match=r'2 mistakes: \(1\) "seeds 5" is not.*\(2\) method=\[: '):
        recipe.override({}, ["seeds 5", "seeds=2", "method=["])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line 1.*not valid YAML"),
        ("a: &x [1]\nb: *x", "line 2.*aliases are not allowed"),
        ("- 1", "mapping"),
        ("!!python/object/apply:os.system [true]", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
    ],
)
def test_bad_files_are_one_line(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        recipe.read(tmp_path / "r.yaml")
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_and_a_malformed_override_are_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read recipe .*no\.yaml"):
        recipe.read(tmp_path / "no.yaml")
    with pytest.raises(UserError, match='"seeds 5" is not an override'):
        recipe.override({}, ["seeds 5"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("method: {name: mr2, lam: 2001-01-01}", "is a date"),
        ("method: {name: mr2, lam: .nan}", "not a finite number"),
        ("method: {name: mr2, lam: 99999999999999999999}", "too large"),
        ('train: {augment: {alpha: "inf"}}', "not a finite number"),
        ('train: {batch_size: "99999999999999999999"}', "too large"),
        ('data: "a\\0b"', "no file can"),
        ('data: "\\ud800"', "no file can"),
        ("1: 2", "is not text"),
        ("method: " + "{a: " * 20 + "1" + "}" * 20, "nested too deeply"),
    ],
)
def test_a_recipe_holds_only_what_a_result_can_carry(tmp_path, text, complaint):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        recipe.build(recipe.read(path))


def test_a_long_name_still_makes_a_folder(tmp_path):
    long = recipe.build({"data": "x" * 5000, "backbone": "timm:" + "y" * 5000})
    (tmp_path / slug(long)).mkdir()


def test_a_number_too_long_to_print_inside_a_list_is_one_line():
    with pytest.raises(UserError) as error:
        recipe.build(recipe.override({}, [f"groups=[{'0x' + 'f' * 5000}]", f"data=[{'0x' + 'f' * 5000}]"]))
    assert "\n" not in str(error.value)
