"""Methods of other packages: registered by a call, or found by an entry point."""

from __future__ import annotations

import json

import pytest

from probe import methods, plugins
from probe.errors import UserError
from probe.methods import MethodSpec
from probe.methods.base import Method
from tests.support.outside_package import CODE, ROWS, install, python
from tests.support.training_world import distance, feature_training, weights

# Descent along the sign of the gradient: more than a loss, since it changes what a step is.
METHOD = """
from probe.methods import MethodSpec, Parameter

SIZE = Parameter("size", 1.0, "of every entry of the gradient", 0)
SIGN = MethodSpec("sign", "sign descent", "Bernstein et al. 2018", "my_package:sign_class", (SIZE,))
LOST = MethodSpec("lost", "x", "x", "my_package.nowhere:Lost")
NO_METHOD = MethodSpec("no-method", "x", "x", "my_package:read")
SAM = MethodSpec("sam", "x", "x", "my_package:read")


def __getattr__(name):  # so that a list of methods does not import torch
    if name != "sign_class":
        raise AttributeError(name)
    from probe.methods.base import Method

    class Sign(Method):
        def __init__(self, loss, *, size):
            super().__init__(loss)
            self.size = size

        def step(self, step):
            loss = step.gradients()
            for p in step.parameters:
                if p.grad is not None:
                    p.grad.sign_().mul_(self.size)
            step.update()
            return loss

    return Sign
"""
METHODS = {
    "sign": "my_package:SIGN",
    "broken": "my_package:NOWHERE",
    "lost": "my_package:LOST",
    "no-method": "my_package:NO_METHOD",
    "sam": "my_package:SAM",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return install(tmp_path_factory.mktemp("site"), CODE + METHOD, {**ROWS, "methods": METHODS})


@pytest.fixture
def _nothing_stays_registered(monkeypatch):
    monkeypatch.setattr(methods.catalogue, "_ADDED", {})


def test_a_run_from_the_command_line_trains_with_the_method_of_an_installed_package(package, tmp_path):
    words = ["-m", "probe.cli", "run", "--backbone", "my-net", "--data", "my-data", "--solver", "sgd"]
    words += ["--method", "sign(la, size=0.01)", "--cache", tmp_path / "cache", "--out", tmp_path / "runs"]
    done = python(package, [*words, "train.epochs=2", "train.head=adapter"])
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").glob("[!.]*")
    assert "sign-la" in folder.name
    result = json.loads((folder / "result.json").read_text())
    assert result["recipe"]["method"] == {"name": "sign", "loss": "la", "size": 0.01}


def test_the_list_shows_it_and_each_failing_plug_in_is_one_line(package):
    listed = python(package, ["-m", "probe.cli", "methods", "--json"])
    assert listed.returncode == 0
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["sign"]["parameters"] == {"size": 1.0, "loss": "erm"}
    assert rows["sam"]["implementation"] == "sam:SAM"  # an entry point cannot replace what is built in
    assert [line.split('"')[1] for line in listed.stderr.splitlines()] == ["broken", "sam"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", 'plug-in "broken" (my_package:NOWHERE) cannot be loaded'),
        ("lost", 'method "lost": my_package.nowhere:Lost cannot be imported'),
        ("no-method", "my_package:read must be a subclass of probe.methods.base.Method"),
        ("sing", 'there is no method "sing"; did you mean "sign"'),
        ("sign(sign)", "sign wraps a loss, and sign is not a loss"),
        ("sign(size=-1)", "sign: size must be at least 0"),
    ],
)
def test_who_asks_for_what_cannot_work_gets_one_line(package, name, says):
    code = (
        "from probe import methods\nfrom probe.errors import UserError\n"
        f"try:\n    methods.make({name!r}, {{}}, num_classes=3)\n"
        "except UserError as error:\n    print(error)\n"
    )
    done = python(package, ["-c", code])
    (line,) = done.stdout.splitlines()
    assert says in line, done.stderr


class Twice(Method):
    """Every batch is used for two updates."""

    def step(self, step):
        loss = super().step(step)
        super().step(step)
        return loss


@pytest.mark.usefixtures("_nothing_stays_registered")
def test_a_registered_method_trains_around_any_loss_and_its_name_is_taken():
    methods.register(MethodSpec("twice", "two updates per batch", "nowhere", Twice))
    assert "twice" in methods.names()
    assert [spec.name for spec in methods.specs()][-1] == "twice"
    plain, twice = feature_training("la", epochs=1), feature_training("twice", {"loss": "la"}, epochs=1)
    assert twice.method.loss.name == "la"
    plain.run()
    twice.run()
    assert distance(weights(plain), weights(twice)) > 1e-3
    for taken in ("twice", "sam", "erm"):
        with pytest.raises(UserError, match=f'there is a method "{taken}" already'):
            methods.register(MethodSpec(taken, "x", "x", Twice))


def test_names_that_are_built_in_do_not_read_entry_points(monkeypatch):
    monkeypatch.setattr(plugins, "find", None)
    for name in ("sam", "drw(ldam)", "mr2"):
        methods.make(name, {}, num_classes=3, class_counts=[3, 2, 1])
    with pytest.raises(TypeError):
        methods.info("unheard-of")
