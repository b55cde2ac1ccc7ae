"""The probe as a scikit-learn estimator."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

import probe
from probe.errors import UserError
from probe.probing.classifier import ProbeClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 5)) + 2 * np.eye(5)[:3].repeat(30, axis=0)
NAMES = np.array(["ant", "bee", "cat"]).repeat(30)


@parametrize_with_checks([ProbeClassifier(tol=1e-18)])  # the checks compare coefficients to seven digits
def test_scikit_learn_finds_nothing_to_complain_about(estimator, check):
    check(estimator)


def test_coefficients_are_scikit_learns():
    ours = ProbeClassifier(l2=0.5, tol=1e-13).fit(X, NAMES)
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(X, NAMES)
    np.testing.assert_allclose(ours.head_.tensors["weight"], theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert (ours.predict(X) == theirs.predict(X)).all()


def test_mr2_is_logistic_regression_on_rows_divided_by_their_class_margin():
    """Its gradient, written out by hand, is zero where the solver stopped."""
    clf = ProbeClassifier(method="mr2-paper", l2=1.0, tol=1e-13).fit(X, NAMES)
    weight, bias = clf.head_.tensors["weight"], clf.head_.tensors["bias"]
    codes = torch.arange(3).repeat_interleave(30)
    features = torch.from_numpy(X)
    t = torch.stack([features[codes == k].square().sum(1).mean() for k in range(3)]) ** (1 / 3)
    gamma = (3 * t / t.sum())[codes, None]
    p = ((features @ weight.T + bias) / gamma).softmax(1) - torch.eye(3)[codes]
    torch.testing.assert_close(
        (p / gamma).T @ features + weight, torch.zeros(3, 5).double(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close((p / gamma).sum(0), torch.zeros(3).double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("solver", "scaling"), [("lbfgs", "standard"), ("ridge", "none"), ("knn", "l2")])
def test_a_saved_classifier_predicts_the_same_after_loading(solver, scaling, tmp_path):
    clf = ProbeClassifier(solver=solver, scaling=scaling, k=5).fit(X, NAMES)
    clf.save(tmp_path)
    again = probe.load(tmp_path)
    assert again.get_params() == clf.get_params()
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert clf.score(X, NAMES) > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "focal"}, "no exact solver"),
        ({"method": "center"}, "no effect"),
        ({"method": "mr2", "solver": "knn"}, "minimises no loss"),
        ({"solver": "sgd"}, "sgd"),
        ({"solver": "lbgfs"}, 'not an exact solver; did you mean "lbfgs"'),
        ({"l2": 0.0}, "l2 must be greater than 0"),
        ({"l2": float("nan")}, "l2 must be greater than 0"),
        ({"l2": "auto"}, "l2 must be greater than 0, not 'auto'"),
        ({"tol": "loose"}, "tol must be at least 0 and less than 1, not 'loose'"),
        ({"solver": "knn", "k": 0}, "k must be greater than 0"),
        ({"tol": 1.0}, "tol must be at least 0"),
        ({"scaling": "std"}, "standard"),
        ({"method": "mr2", "method_params": {"c": float("inf")}}, "number"),
    ],
)
def test_what_would_silently_be_another_method_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        ProbeClassifier(**options).fit(X, NAMES)


def test_a_method_may_be_written_as_in_a_recipe():
    written = ProbeClassifier(method="la(tau=0.5)").fit(X[20:], NAMES[20:])
    given = ProbeClassifier(method="la", method_params={"tau": 0.5}).fit(X[20:], NAMES[20:])
    plain = ProbeClassifier(method="la").fit(X[20:], NAMES[20:])
    assert torch.equal(written.head_.tensors["bias"], given.head_.tensors["bias"])
    assert not torch.equal(written.head_.tensors["bias"], plain.head_.tensors["bias"])


def test_effective_frequencies_need_no_validation_split():
    clf = ProbeClassifier(method="ef", l2=1.0).fit(X, NAMES)
    assert clf.score(X, NAMES) > 0.7


def test_evaluating_against_another_classifier_gives_the_paired_gain():
    from types import SimpleNamespace

    y = np.repeat([0, 1, 2], 30)
    test = SimpleNamespace(X=X, y=y, class_names=("ant", "bee", "cat"))
    weak, strong = ProbeClassifier(l2=1e4).fit(X[:, :2], y), ProbeClassifier(l2=1.0).fit(X, y)

    class FirstTwo:
        classes_ = weak.classes_

        def predict_proba(self, X):
            return weak.predict_proba(X[:, :2])

    result = probe.evaluate(strong, test, versus=FirstTwo())
    gain = strong.score(X, y) - weak.score(X[:, :2], y)
    assert result["versus"]["gain"]["overall"]["mean"] == pytest.approx(gain)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"hard": [0]}, 'groups: class "bee" is in no group'),
        ({"hard": [0, 1], "easy": [1, 2]}, 'groups: class "bee" is listed more than once'),
        ({"hard": [0, 1], "easy": [2, 3]}, "groups: there is no class number 3"),
    ],
)
def test_groups_that_do_not_hold_every_class_once_are_refused(groups, says):
    from types import SimpleNamespace

    y = np.repeat([0, 1, 2], 30)
    test = SimpleNamespace(X=X, y=y, class_names=("ant", "bee", "cat"))
    with pytest.raises(UserError, match=says):
        probe.evaluate(ProbeClassifier().fit(X, y), test, groups=groups)


@pytest.mark.parametrize("name", ["jtt", "drw(ldam)", "sam", "crt", "bcl"])
def test_a_method_that_is_more_than_a_loss_is_refused_by_its_name(name):
    X, y = np.random.default_rng(0).normal(size=(60, 8)), np.arange(60) % 3
    plain = name.partition("(")[0]
    with pytest.raises(UserError, match=rf'"{plain}" is not a loss.*are for `probe run`'):
        ProbeClassifier(name).fit(X, y)
