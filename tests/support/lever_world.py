"""Made-up data sets for `probe improve`: features without images, in which one lever helps, or none."""

from __future__ import annotations

import numpy as np
import torch

from probe import recipe as recipes
from probe.core import scaling
from probe.evaluation.judging import Judge
from probe.evaluation.predictions import from_scores, outcome
from probe.evaluation.summary import EvaluationSet, gain_over
from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.runs import selecting
from probe.runs.judgement import Judgement, TrainingImages
from probe.runs.lever_search import Memory, Search

FIRST, SECOND = "cifar-resnet20", "cifar-resnet32"  # names; their features are made up
LEVERS = ("choice of l2", "margins", "effective frequency", "logit adjustment", f"with {SECOND}")


class MadeUpImages(TrainingImages):
    """Training images that have features only: `tables` maps the name of a backbone to n x D numbers."""

    def __init__(self, labels, tables, plain):
        self.plain, self.tables, self.y = plain, tables, labels
        self.cache, self.ids = None, ()

    def posed(self, recipe):
        X = np.hstack([self.tables[part.name] for part in recipe.backbone.parts])
        names = tuple(f"class {k}" for k in range(self.y.max() + 1))
        rows = torch.from_numpy(X)
        return None, ProbeProblem(rows, self.y, names, "mean_per_class", scaling.NEUTRAL)


class ToldImages:
    """Training images of which `gain(recipe)` tells how many more points a recipe has right in hard classes.

    Predictions of all recipes share their luck, so the better one is right wherever the other is.
    """

    num, each, hard = 6, 200, (4, 5)

    def __init__(self, gain):
        self.plain, self.gain = recipes.build({"backbone": FIRST, "method": "erm"}), gain
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(self.num), self.each)
        self.fold, self.luck = rng.integers(0, 5, len(labels)), rng.random(len(labels))
        self.counts, self.asked = np.bincount(labels), []
        self.base, self.of_hard = np.where(np.isin(labels, self.hard), 0.5, 0.9), np.isin(labels, self.hard)
        correct = self.luck < self.base
        self.judge = Judge.ranked(labels, self.num, self.fold, correct, correct.astype(float))

    def judgement(self, recipe, work, before=None):
        self.asked.append(recipe)
        correct = self.luck < self.base + self.of_hard * self.gain(recipe) / 100
        return Judgement(correct, np.ones(len(correct), dtype=bool), "", 0.0)


class NoCosts:
    """Everything is free, and what a made-up data set cannot do takes for ever."""

    def extraction(self, recipe):
        return 0.0

    def testing(self, recipe):
        return 0.0

    def solving(self, recipe, plain):
        return 0.0

    def judging(self, recipe, plain):
        possible = not recipe.trains and recipe.features.views == "center" and recipe.method.name != "dro"
        return 0.0 if possible and recipe.backbone.image_size is None else float("inf")


def searched(labels, tables, work, *, budget=0.5):
    """The search on these images, done; seconds are no limit."""
    plain = recipes.build({"backbone": FIRST, "method": "erm"})
    images = MadeUpImages(labels, tables, plain)
    search = Search(
        images,
        Memory(work, "made up"),
        budget=budget,
        seconds=1e9,
        backbones=[name for name in tables if name != FIRST],
        costs=NoCosts(),
    )
    search.run()
    return search


def gain_on_test(search, labels, tables):
    """The gain of what the search chose, as improve.json has it; None where nothing was kept."""
    if search.best.digest == search.images.plain.digest:
        return None
    found = []
    for recipe in (search.images.plain, search.best):
        _, problem = search.images.posed(recipe)
        holdout = np.flatnonzero(search.images.fold == 0)
        chosen = selecting.selectors(recipe, problem, [holdout])
        methods = selecting.points(recipe)
        if chosen:
            fit = exact.fit_selected(problem, methods, recipe.solver, chosen[0])
        else:
            fit = exact.fit(problem, methods[0], recipe.solver, holdout)
        X = np.hstack([tables[part.name] for part in recipe.backbone.parts])
        scores = from_scores(fit.head.scores(torch.from_numpy(X)), labels, "m", 0)
        found.append(outcome([scores], labels, "m"))
    names = tuple(str(k) for k in range(labels.max() + 1))
    eval_set = EvaluationSet(labels, names, search.images.judge.groups[0])
    return gain_over(found[1], found[0], eval_set)["gain"]


def blobs(rng, n, *, classes=6, dim=8, spread=1.0, shares=None, centres=None):
    """n labels and features: one Gaussian per class, of one spread or of one for each class."""
    shares = np.full(classes, 1 / classes) if shares is None else np.asarray(shares) / np.sum(shares)
    labels = np.repeat(np.arange(classes), np.maximum(2, np.round(shares * n).astype(int)))
    width = np.broadcast_to(spread, classes)[labels, None]
    return labels, centres[labels] + width * rng.normal(size=(len(labels), dim))
