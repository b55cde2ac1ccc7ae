"""Losses of other packages: registered by a call, or found by an entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import probe.losses
from probe.errors import UserError
from probe.losses.base import ClassInfo, MeanLoss
from probe.losses.spec import LossSpec, Parameter
from tests.support import ROOT

MODULE = """
from probe.losses import LossSpec, Parameter

POWER = Parameter("power", 2.0, "of the error", 1)
BRIER = LossSpec("brier", "Brier score", "Brier 1950", "outside_losses.brier:Brier", (POWER,))
RENAMED = LossSpec("another-name", "x", "x", "outside_losses.brier:Brier")
ERM = LossSpec("erm", "x", "x", "outside_losses.brier:Brier")
LOST = LossSpec("lost", "x", "x", "outside_losses.nowhere:Lost")
NO_LOSS = LossSpec("no-loss", "x", "x", "outside_losses.brier:power")
"""
BRIER = """
from torch.nn import functional as F
from probe.losses.base import MeanLoss

class Brier(MeanLoss):
    def __init__(self, classes, *, power=2.0):
        super().__init__(classes)
        self.power = power

    def losses(self, logits, targets):
        error = logits.softmax(1) - F.one_hot(targets, self.num_classes)
        return error.abs().pow(self.power).sum(1), None

def power(x):
    return x
"""
ENTRY_POINTS = """[mr2_probe.losses]
brier = outside_losses:BRIER
misnamed = outside_losses:RENAMED
lost = outside_losses:LOST
no-loss = outside_losses:NO_LOSS
broken = outside_losses.not_there:ROW
erm = outside_losses:ERM
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder that looks like site-packages with one package installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "outside_losses").mkdir()
    (folder / "outside_losses" / "__init__.py").write_text(MODULE)
    (folder / "outside_losses" / "brier.py").write_text(BRIER)
    info = folder / "outside_losses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-losses\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(package: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys, torch, probe.losses as losses\n" + code],
        env={"PYTHONPATH": f"{package}:{ROOT}", "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_package_adds_a_loss_that_is_made_listed_and_differentiated(package):
    done = run(
        package,
        """
loss = losses.make("brier", num_classes=3, power=1.5)
z = torch.zeros(2, 3, requires_grad=True)
value = loss(z, torch.tensor([0, 2]))
value.backward()
print(loss.name, loss.power, losses.info("brier").title, "brier" in losses.names(), bool(z.grad.any()))
print(*sorted(spec.name for spec in losses.specs() if spec.name not in losses.catalogue._BUILT_IN))
print(losses.make("erm", num_classes=3).__class__.__name__)
""",
    )
    assert done.returncode == 0, done.stderr
    made, listed, built_in = done.stdout.splitlines()
    assert made == "brier 1.5 Brier score True True"
    assert listed == "brier lost no-loss"
    assert built_in == "ERM"  # an entry point cannot replace what is built in


def test_in_a_list_a_failing_plug_in_is_one_line_on_standard_error(package):
    done = run(package, "losses.specs()")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert [line.split('"')[1] for line in lines] == ["broken", "erm", "misnamed"]
    assert "cannot be loaded" in lines[0]
    assert "is ignored: the name is taken" in lines[1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", 'plug-in "broken" (outside_losses.not_there:ROW) cannot be loaded'),
        ("misnamed", 'calls itself "another-name"'),
        ("lost", 'loss "lost": outside_losses.nowhere:Lost cannot be imported'),
        ("no-loss", "must be a subclass of probe.losses.base.Loss"),
        ("brie", 'there is no loss "brie"; did you mean "brier"'),
    ],
)
def test_who_asks_for_a_failing_plug_in_gets_one_line(package, name, says):
    done = run(
        package,
        f"""
from probe.errors import UserError
try:
    losses.make({name!r}, num_classes=3)
except UserError as error:
    print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_the_command_line_lists_a_loss_of_another_package(package):
    done = run(package, "from probe.cli import main; main(['methods', '--json'])")
    assert '"name": "brier"' in done.stdout
    assert '"implementation": "outside_losses.brier:Brier"' in done.stdout


def test_built_in_names_are_found_without_looking_at_other_packages(package):
    done = run(package, "losses.make('mr2', num_classes=3); print('backbones.plugins' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


class Hinge(MeanLoss):
    """mean max(0, margin - (z_y - max_{k != y} z_k))"""

    def __init__(self, classes: ClassInfo, *, margin: float = 1.0) -> None:
        super().__init__(classes)
        self.margin = margin

    def losses(self, logits, targets):
        true = logits.gather(1, targets.unsqueeze(1))
        others = logits.scatter(1, targets.unsqueeze(1), -torch.inf).amax(1)
        return (self.margin - true.squeeze(1) + others).clamp(min=0), None


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(probe.losses.catalogue, "_ADDED", {})
    spec = LossSpec(
        "hinge", "multiclass hinge", "Crammer and Singer 2001", Hinge, (Parameter("margin", 1.0, "m"),)
    )
    probe.losses.register(spec)
    return spec


def test_a_registered_class_is_made_checked_and_listed_like_any_other(registered):
    loss = probe.losses.make("hinge", num_classes=2, margin=2.0)
    assert float(loss(torch.tensor([[1.0, 0.5]]), torch.tensor([0]))) == pytest.approx(1.5)
    assert probe.losses.names()[-1] == "hinge"
    assert probe.losses.specs()[-1] is registered
    assert registered.row()["implementation"].endswith("test_losses_from_outside:Hinge")
    with pytest.raises(UserError, match='hinge has no parameter "margn"; did you mean "margin"'):
        probe.losses.make("hinge", num_classes=2, margn=2.0)


def test_a_registered_loss_is_a_method_and_can_be_wrapped(registered):
    from probe import methods

    assert methods.make("sam(hinge(margin=3.0))", {}, num_classes=4).loss.margin == 3.0
    assert methods.make("drw(hinge)", {}, num_classes=2, class_counts=[5, 1]).loss.name == "hinge"


@pytest.mark.parametrize("name", ["mr2", "hinge"])
def test_a_name_that_is_taken_cannot_be_registered(registered, name):
    with pytest.raises(UserError, match=f'there is a loss "{name}" already'):
        probe.losses.register(LossSpec(name, "x", "x", Hinge))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"takes": "angles"}, 'takes is "angles"'),
        ({"frozen": "exactly"}, 'frozen is "exactly"; did you mean "exact"'),
        ({"needs": ("feature",)}, 'needs is "feature"; did you mean "features"'),
    ],
)
def test_a_row_with_a_wrong_word_is_refused_when_it_is_made(wrong, says):
    with pytest.raises(UserError, match=says):
        LossSpec("x", "x", "x", Hinge, **wrong)
