"""`make sanity`: a method that does not train is named, and the command fails."""

import re

import pytest

from benchmarks import sanity
from probe import methods
from probe.errors import UserError
from probe.train.step import Diverged


def refuses(message, error=UserError):
    def way(world, method, seed):
        raise error(message)

    return way


def by(table):
    """A way whose accuracies are given, one list per method; others are like erm."""
    return lambda world, method, seed: table.get(method, [0.9, 0.9, 0.9])[seed]


def run(monkeypatch, capsys, ways, names):
    monkeypatch.setattr(sanity, "WAYS", ways)
    code = sanity.main(["--methods", *names, "--ways", *ways])
    return code, capsys.readouterr().out


def test_every_method_of_the_catalogue_has_a_row(monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, {"sgd": by({})}, [])
    assert code == 0
    assert re.findall(r"^\| (\S+) \|", out, re.MULTILINE)[1:] == methods.names()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"gce": [0.17, 0.16, 0.2]}, "gce, sgd: at chance"),
        ({"gce": [0.7, 0.71, 0.72]}, "gce, sgd: 19 points below erm"),
    ],
)
def test_what_is_at_chance_or_far_below_erm_fails(monkeypatch, capsys, table, says):
    code, out = run(monkeypatch, capsys, {"sgd": by(table)}, ["erm", "gce"])
    assert code == 1
    assert says in out


def test_a_stopped_training_fails_and_a_refused_one_is_a_dash_with_its_reason(monkeypatch, capsys):
    ways = {"sgd": by({}), "adapter": by({})}
    code, out = run(monkeypatch, capsys, {**ways, "exact": refuses("it is not convex")}, ["erm", "gce"])
    assert code == 0
    assert "| gce | 90.0 ± 0.0 | 90.0 ± 0.0 | — |" in out
    assert "gce, exact: it is not convex" in out
    diverges = {"sgd": by({}), "scratch": refuses("the loss is nan", Diverged)}
    code, out = run(monkeypatch, capsys, diverges, ["gce"])
    assert code == 1
    assert "gce, scratch: the loss is nan" in out


def test_a_known_reason_is_stated_in_the_row_and_does_not_fail(monkeypatch, capsys):
    monkeypatch.setitem(sanity.REASONS, "gce", "it is meant to")
    code, out = run(monkeypatch, capsys, {"sgd": by({"gce": [0.2, 0.2, 0.2]})}, ["gce"])
    assert code == 0
    assert "| gce | 20.0 ± 0.0 | it is meant to |" in out


def test_the_small_net_learns_six_classes_from_scratch(capsys):
    assert sanity.main(["--methods", "lgm", "--ways", "scratch", "--seeds", "1"]) == 0
    assert "every method trains" in capsys.readouterr().out
