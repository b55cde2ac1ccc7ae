"""Accuracy by class and by group, with error bars, and paired comparisons of methods.

The room is also a function: `probe.evaluate(clf, features)` judges one classifier.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def evaluate(
    classifier: Any, features: Any, *, groups: Mapping[str, list[int]] | None = None, versus: Any = None
) -> dict[str, Any]:
    """The `test` block of a result, and the gain over another classifier, on a test split's features.

    `groups` maps names to class indices, e.g. a ranking by `evaluate.groups.crossfit`; by default all classes
    are one group, because ranking them by the judged classifier itself would flatter its rivals.
    """
    import numpy as np

    from probe.evaluate.judge import Bench, Outcome, judge
    from probe.evaluate.judge import versus as gain

    everything = {"all": list(range(len(features.class_names)))}
    bench = Bench(features.y, tuple(features.class_names), everything if groups is None else groups)

    def outcome(clf: Any) -> Outcome:
        order = np.argsort(-clf.predict_proba(features.X), axis=1, kind="stable")
        ranked = np.asarray(clf.classes_)[order]
        return Outcome(
            getattr(clf, "method", type(clf).__name__),
            hits=(ranked[:, 0] == features.y)[None],
            hits5=(ranked[:, :5] == features.y[:, None]).any(axis=1)[None],
        )

    mine = outcome(classifier)
    block = {"test": judge(mine, bench), "versus": None}
    return block if versus is None else {**block, "versus": gain(mine, outcome(versus), bench)}


class _Callable(ModuleType):
    """`probe.evaluate` is a package and, by the public contract, a function: this makes it both."""

    def __call__(self, *args: Any, **options: Any) -> dict[str, Any]:
        return evaluate(*args, **options)


sys.modules[__name__].__class__ = _Callable
