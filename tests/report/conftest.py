"""A result as a run would write it, from simulated features and two real heads; and a browser."""

import json

import numpy as np
import pytest

from probe.evaluation import groups as grouping
from probe.evaluation import metrics
from probe.evaluation.crossfitted import Crossfitted
from probe.evaluation.diagnostics import training_bias
from probe.evaluation.diagnostics.diagnose import LabelledFeatures, Model, diagnose
from probe.evaluation.diagnostics.look_first import NamedImages, look_first
from probe.evaluation.summary import EvaluationSet, MethodOutcome, gain_over, summarise


def simulated_result(num_classes=12, per_class=20, *, names=None, seed=0, dim=16, seeds=2):
    """Two nearest-mean heads on Gaussian classes of unequal spread; the second one shrinks the means."""
    rng = np.random.default_rng(seed)
    names = tuple(names or [f"class {k:03d}" for k in range(num_classes)])
    spread = np.linspace(0.5, 1.8, num_classes)
    means = rng.normal(size=(num_classes, dim))

    def split(n):
        y = np.repeat(np.arange(num_classes), n)
        return means[y] + spread[y, None] * rng.normal(size=(len(y), dim)), y

    (train_x, train_y), (test_x, test_y) = split(per_class), split(per_class)
    centres = np.stack([train_x[train_y == k].mean(0) for k in range(num_classes)])

    def scores(scale, noise):
        w = centres * scale + noise * rng.normal(size=centres.shape)
        return test_x @ w.T - 0.5 * (w**2).sum(1), w

    def on_train(w):
        return training_bias.of_blocks([(train_x @ w.T - 0.5 * (w**2).sum(1), train_y)], num_classes)

    heads = {
        "mr2": [scores(1.0, 0.1) for _ in range(seeds)],
        "erm": [scores(0.8, 0.25) for _ in range(seeds)],
    }
    reference = np.stack([z.argmax(1) == test_y for z, _ in heads["erm"]])
    groups = grouping.thirds(metrics.count(reference, test_y, num_classes).accuracy)
    eval_set = EvaluationSet(test_y, names, groups, np.bincount(train_y))
    outcomes = {
        m: MethodOutcome(
            m,
            np.stack([z.argmax(1) == test_y for z, _ in heads[m]]),
            np.stack([metrics.top_k(z, test_y, 5) for z, _ in heads[m]]),
            np.stack([np.full(len(test_y), 0.9) for _ in heads[m]]),
        )
        for m in heads
    }
    second = (centres**2).sum(1)
    gamma = num_classes * np.cbrt(second) / np.cbrt(second).sum()
    rows = [
        {"name": n, "gamma": float(g), "mean_norm2": float(m), "spread2": float(s**2 * dim)}
        for n, g, m, s in zip(names, gamma, second, spread, strict=True)
    ]
    result = {
        "schema": 1,
        "recipe": {"backbone": {"name": "effnet-lite0"}, "data": {"name": "pets"}, "method": {"name": "mr2"}},
        "backbone": {
            "name": "effnet-lite0",
            "dim": dim,
            "preprocessing": {"size": 224, "mean": [0.5, 0.5, 0.5]},
        },
        "data": {"name": "pets", "metric": "accuracy", "sizes": {"train": len(train_y), "test": len(test_y)}},
        "seeds": [{"seed": s, "l2": 1.0, "select": {"tried": tried(s)}} for s in range(seeds)],
        "environment": {"python": "3.11", "torch": "2.13"},
        "timing": {"features": 1.5, "probe": 0.5, "total": 2.0},
        "groups_by": "crossfit",
        "remarks": ["features are frozen, so the representation term has no effect"],
        "test": summarise(outcomes["mr2"], eval_set),
        "reference": summarise(outcomes["erm"], eval_set),
        "versus": gain_over(outcomes["mr2"], outcomes["erm"], eval_set),
        "margins": {
            "smallest": {"class": names[0], "gamma": 0.9},
            "largest": {"class": names[-1], "gamma": 1.1},
            "by_class": rows,
            "history": [{"step": 10 * e, "gamma": [float(g ** (e / 3)) for g in gamma]} for e in range(4)],
        },
        "diagnostics": diagnose(
            {m: Model(*heads[m][0], before=centres, on_train=on_train(heads[m][0][1])) for m in heads},
            labels=test_y,
            ids=[f"image-{i}" for i in range(len(test_y))],
            class_names=names,
            groups=groups,
            train=LabelledFeatures(train_x, train_y),
            test=LabelledFeatures(test_x, test_y),
            margins=rows,
        ),
    }
    result["diagnostics"]["look_first"] = simulated_look_first(
        names, groups, (train_x, train_y), (test_x, test_y)
    )
    return json.loads(json.dumps(result, allow_nan=False))  # exactly what a file would give back


def tried(seed):
    """A range of two parameters as a selection records it."""
    return [
        {
            "parameters": {"power": p, "lam": lam},
            "l2": 1.0,
            "overall": 0.7 + 0.01 * p - lam / 10,
            "hard": 0.5 + seed / 10,
        }
        for p in (0.0, 0.5, 1.0)
        for lam in (0.1, 0.2)
    ]


def simulated_look_first(names, groups, train, test):
    """The block of a run whose probes mistake every third image of a class for the next class."""
    x, y = (np.concatenate([part, part[:1]]) for part in train)  # one image twice
    said = Crossfitted.empty(y, len(names))
    wrong = np.arange(len(y)) % 3 == 0
    predicted = np.where(wrong, (y + 1) % len(names), y)
    said.keep(0, np.arange(len(y)), 0.9 * np.eye(len(names))[predicted] + 0.1 / len(names))
    images = NamedImages(x, y, [f"image-{i}" for i in range(len(y))], ["train"] * len(y))
    tested = NamedImages(*test, [f"image-{i}" for i in range(len(test[1]))], ["test"] * len(test[1]))
    return look_first(said, images, tested, names, groups["hard"])


@pytest.fixture(scope="session")
def result():
    return simulated_result()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """The chart library is kept in a cache; tests must not touch the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def browser():
    from tests.support.browser import Browser

    window = Browser()
    yield window
    window.close()


@pytest.fixture(scope="session")
def simulate():
    return simulated_result
