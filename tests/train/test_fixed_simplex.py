"""A loss for class vectors that are not trained chooses the simplex by itself, and refuses other heads."""

import pytest

from probe.errors import UserError
from probe.heads import ETF, Adapter
from probe.recipe import MethodConfig
from probe.recipe.train_settings import TrainConfig
from probe.train.build import check, make_head
from tests.support.training_world import D, K, choice, method


@pytest.mark.parametrize("head", ["auto", "etf", "adapter"])
def test_the_head_of_dot_regression_is_the_simplex(head):
    settings = TrainConfig(head=head)
    check(choice("dot-regression"), settings)
    made = make_head(method("dot-regression"), settings, dim=D, num_classes=K, seed=0)
    assert isinstance(made.head if isinstance(made, Adapter) else made, ETF)
    assert isinstance(made, Adapter) == (head == "adapter")


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_trained_class_vectors_are_refused(head):
    with pytest.raises(UserError, match=r"train\.head=(etf|cosine)"):
        check(choice("dot-regression"), TrainConfig(head=head))


def test_a_method_that_needs_labels_refuses_mixing():
    with pytest.raises(UserError, match="lff takes labels"):
        check(MethodConfig(name="lff"), TrainConfig(augment={"mix": "mixup"}))
