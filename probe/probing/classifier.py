"""The scikit-learn estimator: fit and predict on features, with any method that has an exact solver.

>>> clf = ProbeClassifier(method="mr2", l2=1.0).fit(X, y)
>>> clf.save("out"); probe.load("out").predict(X)

`probe.fit` is the same for a FeatureSet; it also remembers the class names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from probe import losses
from probe.core import scaling
from probe.errors import UserError
from probe.evaluation.summary import LabelledSplit
from probe.heads import fitted
from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.probing.settings import ExactSolver, LossChoice
from probe.system import devices

NO_ROWS = np.array([], dtype=np.int64)


class ProbeClassifier(ClassifierMixin, BaseEstimator):
    """A linear (or nearest-neighbour) head on frozen features.

    method         a name of `probe methods` that acts on frozen features exactly: erm, mr2, la, cb, ...
    method_params  its parameters, e.g. {"tau": 1.5}
    solver         "lbfgs" (exact), "ridge" or "knn"
    l2             weight of the penalty: sum of losses + l2/2 |W|^2, scikit-learn's C = 1/l2
    scaling        of the features before the head: "none", "standard" or "l2"
    k, weighted    neighbours of k-NN, and whether their votes are weighted by similarity
    tol            certified relative excess of the objective at which lbfgs stops
    device         where it is solved: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1" or "mps"
    """

    def __init__(
        self,
        method: str = "erm",
        method_params: dict[str, Any] | None = None,
        solver: str = "lbfgs",
        l2: float = 1.0,
        scaling: str = "none",
        k: int = 20,
        weighted: bool = True,
        tol: float = 1e-7,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.method_params = method_params
        self.solver = solver
        self.l2 = l2
        self.scaling = scaling
        self.k = k
        self.weighted = weighted
        self.tol = tol
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ProbeClassifier:
        """Fit the head to N x D features, N labels and, where given, N weights."""
        array, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, array, dtype=array.dtype)
            used = weight > 0  # a row of weight 0 does not exist, for the margins either
            array, labels, weight = array[used], labels[used], weight[used]
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        rows = torch.from_numpy(np.array(array))
        problem = ProbeProblem(
            raw=rows,
            y=codes.astype(np.int64),
            class_names=tuple(str(c) for c in self.classes_),
            metric="accuracy",
            scaling=scaling.make(self.scaling, rows),
            sample_weight=weight,
            device=devices.chosen(self.device),
        )
        solver = ExactSolver(self.solver, l2=self.l2, k=self.k, weighted=self.weighted, tol=self.tol)
        result = exact.fit(problem, _loss(self.method, self.method_params or {}), solver, NO_ROWS)
        self.head_ = result.head
        self.n_iter_ = max(1, result.record.get("iterations", 1))
        return self

    def _scores(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        array = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return self.head_.scores(torch.from_numpy(np.array(array)))

    def decision_function(self, X: ArrayLike) -> NDArray[np.floating]:
        """N x K scores; for two classes the difference of the two, as scikit-learn has it."""
        scores = self._scores(X).numpy()
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.floating]:
        """N x K class probabilities."""
        return self._scores(X).softmax(dim=1).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """N class labels, as `fit` was given them."""
        best = self._scores(X).argmax(dim=1).numpy()
        return self.classes_[best]

    def save(self, folder: str | Path) -> None:
        """Write the head to `folder`, without pickle."""
        check_is_fitted(self)
        about = {
            "parameters": self.get_params(),
            "classes": self.classes_.tolist(),
            "class_names": getattr(self, "class_names_", None),
            "dim": self.n_features_in_,
            "n_iter": self.n_iter_,
        }
        fitted.save(self.head_, Path(folder), about)


def _loss(name: str, params: dict[str, Any]) -> LossChoice:
    """A loss by its name, or as it is written in a recipe: `mr2(lam=0.01)`."""
    content = {"name": name, **params}
    if "(" in name:
        from probe.recipe import grammar

        content = grammar.understood(content)
    name = content.pop("name")
    if not losses.is_known(name):
        raise UserError(
            f'"{name}" is not a loss, and this fits one (see probe.losses.names()); '
            "methods around a loss, such as jtt or drw, are for `probe run`"
        )
    return LossChoice(name, content)


def fit(
    features: LabelledSplit,
    *,
    method: str = "erm",
    head: str = "linear",
    solver: str = "lbfgs",
    l2: float = 1.0,
    scaling: str = "none",
    device: str = "auto",
    **params: Any,
) -> ProbeClassifier:
    """A probe on cached features; further keywords are the method's own parameters.

    Only a linear head has an exact solution; cosine and other heads are trained (`probe run --solver sgd`).

    >>> clf = probe.fit(f, method="mr2", l2=1.0)
    """
    if head != "linear":
        raise UserError(f'a {head} head has no exact solution; use "linear", or `probe run --solver sgd`')
    clf = ProbeClassifier(method, params or None, solver=solver, l2=l2, scaling=scaling, device=device)
    clf.fit(features.X, features.y)
    clf.class_names_ = [features.class_names[k] for k in clf.classes_]
    return clf


def load(folder: str | Path, kind: type[ProbeClassifier] = ProbeClassifier) -> ProbeClassifier:
    """The classifier that `save`, or a run, wrote to `folder`."""
    head, about = fitted.load(Path(folder))
    names = about.get("class_names")
    classes = about.get("classes") or list(range(len(names or [])))
    if not classes or "dim" not in about:
        raise UserError(f"{folder}: the head does not name its classes; run the probe again")
    clf = kind(**about.get("parameters", {}))
    clf.head_, clf.n_iter_, clf.n_features_in_ = head, about.get("n_iter", 1), about["dim"]
    clf.classes_, clf.class_names_ = np.asarray(classes), names
    return clf
