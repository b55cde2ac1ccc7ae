"""A setting that would change nothing is refused in one line; what is merely written out is not."""

import pytest
from click.testing import CliRunner

from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.runs import run, unused_settings
from probe.runs.strategy import choose

TRAINED = {"solver": "sgd", "method": "erm"}
TUNED = {"finetune": True, "method": "erm"}
SCRATCH = {"backbone": "cifar-resnet20"}


@pytest.mark.parametrize(
    ("content", "key", "why"),
    [
        ({"train": {"lr": 0.1}}, "train.lr=0.1", "--solver sgd, or --finetune"),
        ({"train": {"augment": {"mix": "mixup"}}}, "train.augment.mix=mixup", "nothing is trained"),
        ({**TUNED, "solver": "sgd"}, "solver.name=sgd", "use one of the two"),
        ({**TUNED, "solver": "knn"}, "solver.name=knn", "use one of the two"),
        ({**TUNED, "train": {"micro_batch": 300}}, "train.micro_batch=300", "at most train.batch_size"),
        ({**TRAINED, "train": {"micro_batch": 64, "batch_size": 32}}, "micro_batch=64", "batch_size"),
        ({**TRAINED, "train": {"augment": {"policy": "randaugment"}}}, "augment.policy", "--finetune"),
        ({**TRAINED, "train": {"start": "probe"}}, "train.start=probe", "--finetune"),
        ({**TRAINED, "train": {"wise": [0.5]}}, "train.wise", "--finetune"),
        (
            {**TRAINED, "train": {"optimizer": "adamw", "momentum": 0.5}},
            "train.momentum=0.5",
            "adamw has none",
        ),
        ({"solver": {"k": 5}}, "solver.k=5", "--solver knn"),
        ({"solver": {"name": "knn", "l2": 3}}, "solver.l2=3.0", "no penalty"),
        ({"solver": {"name": "zeroshot", "grid": "full"}}, "solver.grid=full", "no penalty"),
        ({"solver": {"name": "ridge", "tol": 1e-3}}, "solver.tol=0.001", "lbfgs"),
        ({"solver": {"l2": 1, "grid": "full"}}, "solver.grid=full", "solver.l2 is given"),
        ({"solver": {"name": "sgd", "l2": 1}, "method": "ldam"}, "solver.l2=1.0", "train.weight_decay"),
        ({**TUNED, "train": {"augment": {"alpha": 0.2}}}, "train.augment.alpha=0.2", "mixup"),
        ({**TUNED, "train": {"augment": {"magnitude": 5}}}, "train.augment.magnitude=5", "randaugment"),
        ({"data": {"name": "digits", "profile": "step"}}, "data.profile=step", "data.imbalance"),
        ({**TRAINED, "train": {"micro_batch": 300}}, "train.micro_batch=300", "at most train.batch_size"),
        ({**TRAINED, "train": {"workers": 3}}, "train.workers=3", "--finetune"),
        ({**TUNED, "train": {"momentum": 0.5}}, "train.momentum=0.5", "adamw has none"),
        (
            {"method": "erm", "solver": {"name": "sgd", "l2": 3}, "train": {"weight_decay": 0.1}},
            "solver.l2=3.0",
            "train.weight_decay is given",
        ),
        ({"solver": {"name": "sgd", "l2": 1}, "method": "lgm"}, "solver.l2=1.0", "train.weight_decay"),
        ({"solver": "sgd", "method": "lgm", "train": {"head": "cosine"}}, "train.head=cosine", "of its own"),
        ({**TUNED, **SCRATCH, "solver": {"l2": 3}}, "solver.l2=3.0", "from scratch"),
        ({**TRAINED, "train": {"whiten": False}}, "train.whiten=False", "cosine heads"),
        (
            {**TUNED, **SCRATCH, "method": "ldam", "train": {"whiten": False}},
            "train.whiten=False",
            "pretrained",
        ),
        ({**TRAINED, "train": {"milestones": [0.5]}}, "train.milestones=(0.5,)", "train.schedule=steps"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_before_anything_is_computed(content, key, why):
    with pytest.raises(UserError) as caught:
        run.check(choose(recipe.build(content)))
    said = str(caught.value)
    assert said.startswith("settings without effect")
    assert key in said
    assert why in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"solver": {"name": "knn", "k": 5, "weighted": False}},
        {"solver": {"l2": 2.0, "tol": 1e-5}},
        {"solver": {"name": "ridge", "grid": "full"}},
        {
            **TRAINED,
            "solver": {"name": "sgd", "l2": 1, "grid": "coarse"},
            "train": {"lr": 0.1, "micro_batch": 8},
        },
        {**TUNED, "solver": {"l2": 3.0}, "train": {"start": "probe", "micro_batch": "auto"}},
        {**TUNED, "train": {"optimizer": "sgd", "momentum": 0.5}},
        {**TUNED, **SCRATCH, "train": {"momentum": 0.5}},
        {**TUNED, "train": {"augment": {"policy": "randaugment", "magnitude": 5}}},
        {**TUNED, "method": "bcl", "train": {"whiten": False}},  # whose head is a cosine one
        {**TUNED, "method": "dot-regression", "train": {"head": "etf", "whiten": False}},
        {"data": {"name": "digits", "imbalance": 10, "profile": "step"}},
    ],
)
def test_what_acts_passes_and_so_does_a_resolved_recipe_run_again(content, tmp_path):
    first = recipe.build(content)
    run.check(choose(first))
    (tmp_path / "recipe.yaml").write_text(first.to_yaml())  # names every key, defaults too
    run.check(choose(recipe.build(recipe.read(tmp_path / "recipe.yaml"))))


def test_every_idle_setting_is_named_at_once():
    with pytest.raises(UserError, match=r"train.epochs=3.*solver.k=5.*data.profile=step"):
        run.check(
            choose(recipe.build({"train": {"epochs": 3}, "solver": {"k": 5}, "data": {"profile": "step"}}))
        )


def test_a_parameter_alone_is_one_of_the_default_method():
    alone = recipe.build(recipe.override({}, ["method.lam=0.05"]))
    assert (alone.method.name, alone.method.params) == ("mr2", {"lam": 0.05})
    assert alone.digest == recipe.build({"method": {"name": "mr2", "lam": 0.05}}).digest
    run.check(choose(alone))
    lossless = recipe.build(recipe.override({"solver": "knn"}, ["method.lam=0.05"]))
    with pytest.raises(UserError, match='erm has no parameter "lam"'):
        run.check(choose(lossless))
    with pytest.raises(UserError, match='mr2 has no parameter "rho"'):
        run.check(choose(recipe.build(recipe.override({}, ["method.rho=0.05"]))))


def test_too_many_processes_are_one_line_without_a_note_before_it():
    refused = CliRunner().invoke(main, ["run", "--gpus", "1000000"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: cannot start 1000000 processes")
    assert len(refused.stderr.splitlines()) == 1


def test_rules_name_keys_that_exist():
    keys = [key for key, _ in unused_settings._flat(recipe.Recipe().model_dump())]
    for rule in unused_settings.RULES:
        for own in rule.keys:
            assert any(key == own or key.startswith(f"{own}.") for key in keys), own


def test_checks_of_method_and_settings_are_told_together():
    r = recipe.build({"method": "focal", "train": {"epochs": 3}, "solver": {"k": 5}})
    with pytest.raises(
        UserError, match=r"2 mistakes: \(1\) focal has no exact solver.*train.epochs=3.*solver.k"
    ):
        run.check(choose(r))
    train = {"epochs": 3, "head": "cosine"}
    for method, mistake in (("mr3", 'there is no method "mr3"'), ("mr2(lamm=1)", 'no parameter "lamm"')):
        unknown = recipe.build({"method": method, "train": train, "solver": {"k": 5}})
        with pytest.raises(
            UserError, match=rf"2 mistakes: .*{mistake}.*train.epochs=3.*solver.k=5"
        ) as caught:
            run.check(choose(unknown))
        assert str(caught.value).count(mistake) == 1
        unknown = recipe.build({"method": method, "train": train, "solver": {"name": "sgd", "k": 5}})
        with pytest.raises(UserError, match=rf"2 mistakes: .*{mistake}.*solver.k=5"):
            run.check(choose(unknown))
