"""The table of methods names everything that can be trained, and what is wrong with a wrong name."""

import subprocess
import sys

import pytest

from probe import losses, methods
from probe.errors import UserError


def test_every_loss_is_a_method_and_some_methods_are_more():
    assert {"erm", "mr2", "ldam", "sam", "jtt", "drw"} <= set(methods.names())
    assert methods.info("mr2") is losses.info("mr2")
    for row in methods.catalogue.METHODS:
        assert row.title
        assert row.paper
        built = methods.make(row.name, {}, num_classes=4, class_counts=[5, 4, 3, 2])
        assert built.loss.name == row.defaults["loss"].partition("(")[0]


def test_a_method_takes_a_loss_by_name_or_with_its_parameters():
    assert methods.make("sam", {"loss": "mr2"}, num_classes=3).loss.lam == 0.5
    assert methods.make("sam", {"loss": {"name": "mr2", "lam": 0.2}}, num_classes=3).loss.lam == 0.2
    assert methods.inner("jtt", {"loss": "ldam"}).takes == "cosines"


def test_defaults_depend_on_where_statistics_come_from_unless_they_are_given():
    options = {"num_classes": 3, "class_counts": [5, 4, 3]}
    alone = methods.make("mr2", {}, **options).loss
    assert (alone.stats.robust, alone.cap, alone.shrink, alone.lam) == (False, None, 0, 0.5)
    whole = methods.make("sam", {"loss": "mr2"}, **options, whole_set=True).loss
    assert (whole.stats.robust, whole.cap, whole.shrink, whole.lam) == (True, 3, 2, 0.5)
    scratch = methods.make("mr2", {}, **options, whole_set=True, scratch=True).loss
    assert (scratch.scale, scratch.lam) == ("total", 0.5)
    given = {"loss": {"name": "mr2", "cap": 5.0, "robust": False}}
    kept = methods.make("sam", given, **options, whole_set=True).loss
    assert (kept.stats.robust, kept.cap, kept.shrink) == (False, 5, 2)


def test_a_name_whose_meaning_has_changed_has_a_version():
    assert methods.catalogue.versions("erm", {}) == {}
    assert methods.catalogue.versions("mr2", {}) == methods.catalogue.versions("sam", {"loss": "mr2"})
    assert methods.catalogue.versions("mr2", {})["mr2"] > 1


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("sa", {}, 'there is no method "sa".*sam'),
        ("sam", {"rh": 1}, 'sam has no parameter "rh".*rho'),
        ("sam", {"rho": -1}, "sam: rho must be at least 0"),
        ("sam", {"loss": "jtt"}, "sam wraps a loss, and jtt is not a loss"),
        ("sam", {"loss": "supcon"}, r"supcon is not a loss(?!.*supcon)"),  # is not what it proposes
        ("sam", {"loss": {"lam": 1}}, "loss must be a loss's name"),
        ("sam", {"loss": {"name": "mr2", "lamb": 1}}, 'mr2 has no parameter "lamb"'),
        ("erm", {"rho": 1}, 'erm has no parameter "rho"'),
        ("supcon", {"head_epochs": 0.5}, "head_epochs is for stage=two and has no effect here"),
        ("supcon", {"stage": "two", "weight": 1}, "weight is for stage=joint and has no effect here"),
        ("ef", {"frequency": [1, 1, 1], "form": "weights", "tau": 2}, "tau is for form=prior"),
    ],
)
def test_mistakes_are_one_line(name, params, message):
    with pytest.raises(UserError, match=message) as caught:
        methods.make(name, params, num_classes=3)
    assert "\n" not in str(caught.value)


def test_listing_methods_imports_no_torch():
    code = "import sys, probe.methods as m, probe.recipe; m.names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
