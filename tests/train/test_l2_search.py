"""The penalty of a loss without an exact form: found uphill, by trainings that have not seen the judges."""

import numpy as np
import pytest
import torch

from probe.heads.fitted import FittedHead
from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.recipe import MethodConfig, SolverConfig
from probe.recipe.train_settings import TrainConfig
from probe.train import probe_sgd
from probe.train.l2_search import MOST, L2Search
from probe.train.step import Diverged
from tests.support.training_world import blobs

HELD = np.arange(0, 200, 4)
START = 2.0


def problem():
    X, y = blobs(200)
    return ProbeProblem(raw=X, y=y, class_names=tuple("abcde"))


class Trainings:
    """Heads that are right on as many held-out images as the table says, by powers of ten from the start."""

    def __init__(self, right):
        self.right, self.asked, self.p = right, [], problem()

    def __call__(self, kept, l2):
        assert kept.images == 150
        place = round(float(np.log10(l2 / START)))
        self.asked.append(place)
        if self.right.get(place) is None:
            raise Diverged("too far")
        labels = self.p.labels[HELD].copy()
        labels[self.right[place] :] = (labels[self.right[place] :] + 1) % 5
        return Answer(labels)

    def search(self):
        return L2Search(self.p, HELD)(self, START, {})


class Answer(FittedHead):
    """A head that gives these labels."""

    def __init__(self, labels):
        super().__init__(
            "linear", {"labels": torch.nn.functional.one_hot(torch.as_tensor(labels), 5).float()}
        )

    def scores(self, features):
        return self.tensors["labels"]


@pytest.mark.parametrize(
    ("right", "chosen", "asked"),
    [
        ({-1: 30, 0: 40, 1: 35}, 0, [0, 1, -1]),
        ({-1: 30, 0: 40, 1: 45, 2: 44}, 1, [0, 1, 2]),
        ({-3: 10, -2: 48, -1: 45, 0: 40, 1: 35}, -2, [0, 1, -1, -2, -3]),
        ({-1: 40, 0: 40, 1: 40, 2: 39}, 1, [0, 1, 2]),  # of equal ones the strongest
        ({-1: 30, 0: 40, 1: None}, 0, [0, 1, -1]),  # a training that diverged is the worst
    ],
)
def test_it_climbs_to_the_best_penalty_and_looks_at_both_neighbours(right, chosen, asked, monkeypatch):
    monkeypatch.setattr("probe.train.l2_search.OnScaled", Direct)
    trainings = Trainings(right)
    record = trainings.search()
    assert record["l2"] == pytest.approx(START * 10.0**chosen)
    assert trainings.asked == asked
    assert len(record["validation"]) == len(asked)


class Direct:
    """In place of a head on scaled features: the answer itself."""

    def __init__(self, head):
        self.head = head

    def logits(self, X):
        return self.head.scores(X)


def test_it_ends_after_a_few_trainings_however_high_the_hill(monkeypatch):
    monkeypatch.setattr("probe.train.l2_search.OnScaled", Direct)
    trainings = Trainings({place: 10 + 2 * place for place in range(12)})
    trainings.search()
    assert len(trainings.asked) == MOST


def test_focal_loss_chooses_for_itself_and_a_convex_loss_by_the_exact_solver():
    p, solver = problem(), SolverConfig(name="sgd")
    settings = TrainConfig(epochs=3, batch_size=64)
    own = probe_sgd(p, MethodConfig(name="focal"), solver, HELD, settings=settings, show=False).record
    plain = exact.fit(p, MethodConfig(name="erm"), SolverConfig(), HELD).record["l2"]
    steps = [np.log10(l2 / plain) for l2, _ in own["validation"]]
    assert all(step == pytest.approx(round(step)) for step in steps)
    assert 3 <= len(steps) <= MOST
    assert own["l2"] == max(own["validation"], key=lambda row: (round(row[1], 9), row[0]))[0]
    convex = probe_sgd(p, MethodConfig(name="la"), solver, HELD, settings=settings, show=False).record
    assert convex["l2"] == exact.fit(p, MethodConfig(name="la"), SolverConfig(), HELD).record["l2"]
    given = SolverConfig(name="sgd", l2=3.0)
    assert (
        "validation"
        not in probe_sgd(p, MethodConfig(name="focal"), given, HELD, settings=settings, show=False).record
    )
