"""Easy, Medium and Hard of a run: by a model that is not the one under test, and not by the test images.

Where the backbone is pretrained, that is an erm probe, cross-fitted on the frozen features of the training
split. A network from scratch has no features worth ranking by before its training, and afterwards it knows
every row that it was trained on; so its classes are ranked by an erm training and rows held out from it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from probe.evaluation import groups as ranked
from probe.evaluation import metrics, predictions
from probe.evaluation.groups import Ranking
from probe.recipe import COUNT_GROUPS, Recipe
from probe.runs import groups, reference
from probe.runs.experiment import Experiment
from probe.runs.first_stage import FirstStage
from probe.runs.folder import understood
from probe.runs.naming import label
from probe.runs.reference import ERM, SAME, TrainedRun

HELD_OUT = "held-out"  # groups_by of a network from scratch
HELD_OUT_REMARK = "groups are ranked by erm, trained from scratch, and training images held out from it"
NOTHING_REMARK = (
    "nothing ranks the classes: some have no training image to hold out; name groups with --groups"
)


def training_needed(recipe: Recipe) -> Recipe | None:
    """The erm training that must be there for the ranking alone; None where the run has all it takes.

    A run that is compared with a training takes that training's groups.
    """
    if not _by_training(recipe) or reference.how(recipe) == SAME:
        return None
    ranking = reference.ranking_recipe(recipe)
    return None if ranking.digest == recipe.digest else ranking


def rank(e: Experiment, ranking_run: TrainedRun | None) -> Ranking:
    """The groups as the recipe asks for them; `ranking_run` is that of `training_needed`."""
    if _by_training(e.recipe):
        other = e.trained or ranking_run
        return _by_own_holdouts(e) if other is None else _taken_from(other, e)
    source = e.recipe.groups
    if e.inputs.first is not None and source == "crossfit":
        return _of_first_stage(e.inputs.first, e)
    # also where the groups are given: it shows why classes are hard
    found, crossfitted = ({}, None) if e.recipe.from_scratch else e.ground.crossfitted
    made = e.inputs.groups or (_by_test_accuracy(e) if source == "paper" else found)
    if isinstance(source, str) and source in COUNT_GROUPS:
        counts = np.bincount(e.inputs.y, minlength=e.problem.num_classes)
        made = groups.by_train_count(source, counts)
    where, said = groups.origin(source), groups.remark(source) or groups.remark_on(made)
    return Ranking(made, str(where["groups_by"]), where["groups_from"], said, crossfitted=crossfitted)


def _by_training(recipe: Recipe) -> bool:
    return recipe.groups == "crossfit" and recipe.from_scratch


def _by_test_accuracy(e: Experiment) -> dict[str, list[int]]:
    """By erm's test accuracy; a training that is itself erm ranks by its own."""
    plain = label(e.recipe) if e.versus is None else ERM
    correct = predictions.outcome(e.predictions, e.test.y, plain).correct
    return ranked.thirds(np.nan_to_num(metrics.count(correct, e.test.y, e.problem.num_classes).accuracy))


def _taken_from(other: TrainedRun, e: Experiment) -> Ranking:
    """The groups of another training, and where those came from."""
    by, source = other.result["groups_by"], other.result["groups_from"] or other.name
    found = groups.of_result(other.result, e.problem.class_names)
    return Ranking(found, by, source, HELD_OUT_REMARK if by == HELD_OUT else NOTHING_REMARK)


def _of_first_stage(first: FirstStage, e: Experiment) -> Ranking:
    """The groups of the run whose encoder gives the features: it knows every image it was trained on."""
    with understood(first.folder.path):
        found = groups.of_result(first.result, e.problem.class_names)
        by, source = first.result["groups_by"], first.result["groups_from"] or first.name
    return Ranking(found, by, source, f"groups are those of its first stage, {first.name}")


def _by_own_holdouts(e: Experiment) -> Ranking:
    """This run is the erm training that ranks: by the rows held out from each seed."""
    scores = [s for s in e.fitted.holdout_scores if s is not None]
    probability = F.softmax(torch.cat(scores).double(), dim=1).numpy()
    problem = e.problem
    labels = np.concatenate([e.inputs_of(seed).y[rows] for seed, rows in enumerate(e.holdouts)])
    found = ranked.held_out(labels, probability, problem.num_classes)
    if found is None:
        return Ranking({"all": list(range(problem.num_classes))}, "none", remark=NOTHING_REMARK)
    return Ranking(found, HELD_OUT, remark=HELD_OUT_REMARK)
