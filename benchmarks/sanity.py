"""Does every method train? All of the catalogue, by every way to a head, beside plain cross-entropy.

    make sanity                            # or: python -m benchmarks.sanity
    python -m benchmarks.sanity --methods arcface gce --ways sgd scratch --seeds 1

Six classes of the digits that come with the package, 60 training images of each: the exact solver and SGD on
features of EfficientNet-lite0, an adapter in front of the head there, and a small convolutional net from
scratch. All settings are the defaults, but for a short training from scratch. A figure is the mean accuracy
over the seeds on the test images of these classes. It is marked, and the command fails, where it is within
noise of chance, or more than 15 points below `erm` by the same way without a reason in REASONS. What a way
does not offer for a method is a dash, with the reason below the table.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import backbones
from backbones import Parts, Preprocessing, Spec
from backbones.backbone import Backbone
from backbones.sources import Scratch
from probe import data, features, methods, recipe
from probe.data import Dataset, Split
from probe.data.holdout import stratified_holdout
from probe.errors import UserError
from probe.probing import exact, second_stage
from probe.probing.problem import ProbeProblem
from probe.recipe.train_settings import TrainConfig
from probe.runs import first_stage, run
from probe.runs.strategy import choose
from probe.train.finetuning import finetune
from probe.train.sgd import probe_sgd
from probe.train.step import Diverged

CLASSES, IMAGES = 6, 60
EPOCHS, BATCH = 6, 32  # from scratch
HELD = 0.2
FAR = 0.15  # below erm
NOISE = 3.0  # standard errors above chance
PLAIN = "erm"

# Why a method may end far below erm: by its name, or by name and way.
REASONS: dict[str, str] = {
    "mr2-paper scratch": "lam=0.1 weighs squared distances as they are, too hard for so few steps; "
    "lam=0.01 ends higher",
    "arcface scratch": "an angle's margin from the first step on takes more than 6 epochs; with 18 it is 10 "
    "points below erm",
    "bcl scratch": "a projection and two views take more than 6 epochs; with 18 it is 3 points below erm",
}


def tiny_net(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """Three convolutions with batch-norm, pooled to 64 features: a step takes a few milliseconds."""
    layers: list[nn.Module] = []
    for before, width, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Parts(net, 64, "pooled", Preprocessing(size=8, resize=8), "three convolutions", str(Scratch()))


TINY = Spec("sanity-net", tiny_net, "three convolutions", Scratch(), {"pooled": 64}, 8, "apache-2.0")


def six_digits() -> Dataset:
    """The first classes of digits, so many training images of each."""
    whole = data.load("digits")
    names = whole.class_names[:CLASSES]
    splits = {}
    for name, most in (("train", IMAGES), ("test", 10**6)):
        labels = whole[name].labels
        rows = np.concatenate([np.flatnonzero(labels == k)[:most] for k in range(CLASSES)])
        splits[name] = whole[name].subset(rows, name)
        splits[name].class_names = names
    return Dataset("six digits", names, "accuracy", whole.templates, splits, whole.source)


@dataclass(frozen=True)
class World:
    """The images, their features, and where trainings may write."""

    cache: Path | None
    work: Path
    images: Dataset = field(default_factory=six_digits)

    @cached_property
    def _features(self) -> dict[str, Tensor]:
        """Of the whole data set, so that its cache entries serve, cut to the rows used here."""
        backbone, whole = backbones.load("effnet-lite0"), data.load("digits")
        return {name: self._rows(backbone, whole[name], self.images[name]) for name in ("train", "test")}

    def _rows(self, backbone: Backbone, whole: Split, part: Split) -> Tensor:
        found = features.extract(backbone, whole, cache=self.cache)
        place = {sample: row for row, sample in enumerate(found.ids)}
        return torch.as_tensor(np.asarray(found.X[[place[sample] for sample in part.ids]])).float()

    @cached_property
    def problem(self) -> ProbeProblem:
        train = self.images["train"]
        return ProbeProblem(self._features["train"], train.labels, self.images.class_names)

    def held(self, seed: int) -> np.ndarray:
        return stratified_holdout(self.images["train"].labels, HELD, seed)[1]

    def accuracy(self, scores: Tensor) -> float:
        return float((scores.argmax(1).numpy() == self.images["test"].labels).mean())

    def judged(self, fit: exact.Fit) -> float:
        return self.accuracy(fit.head.scores(self._features["test"]))


def by_exact(world: World, method: str, seed: int) -> float:
    """The exact solver; a second stage after plain cross-entropy."""
    asked = recipe.build({"method": method})
    run.check(choose(asked))
    if first_stage.is_exact(asked.method):
        stage = first_stage.settings(asked.method)
        return world.judged(second_stage.fit(world.problem, stage, asked.solver, world.held(seed)))
    return world.judged(exact.fit(world.problem, asked.method, asked.solver, world.held(seed)))


def by_sgd(world: World, method: str, seed: int, **train: str) -> float:
    """SGD on features."""
    content = {"method": method, "solver": "sgd", "train": train}
    asked = recipe.build(content)
    run.check(choose(asked))
    fit = probe_sgd(
        world.problem,
        asked.method,
        asked.solver,
        world.held(seed),
        settings=asked.train,
        seed=seed,
        show=False,
    )
    return world.judged(fit)


def by_adapter(world: World, method: str, seed: int) -> float:
    """SGD on features, with an adapter in front of the head."""
    return by_sgd(world, method, seed, head="adapter")


def from_scratch(world: World, method: str, seed: int) -> float:
    """The tiny net, trained from scratch."""
    train = TrainConfig(epochs=EPOCHS, batch_size=BATCH, workers=0)
    asked = recipe.build({"backbone": TINY.name, "data": "digits", "method": method, "finetune": True})
    asked = asked.model_copy(update={"train": train})
    run.check(choose(asked))
    with tempfile.TemporaryDirectory(dir=world.work) as folder:
        held = world.held(seed)
        tuned = finetune(asked, world.images, held, folder=Path(folder), seed=seed, show=False)
    return world.accuracy(tuned.scores)


WAYS: dict[str, Callable[[World, str, int], float]] = {
    "exact": by_exact,
    "sgd": by_sgd,
    "adapter": by_adapter,
    "scratch": from_scratch,
}


@dataclass(frozen=True)
class Cell:
    """One method by one way: an accuracy for each seed, or why there is none."""

    accuracies: tuple[float, ...] = ()
    refused: str = ""  # what the method has no such way for
    failed: str = ""  # a training that stopped

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    def fault(self, plain: Cell, images: int, reason: str) -> str:
        """What is wrong with it; nothing where `reason` explains it."""
        if self.refused or reason:
            return ""
        if self.failed:
            return self.failed
        chance = 1 / CLASSES
        if self.mean < chance + NOISE * (chance * (1 - chance) / images) ** 0.5:
            return "at chance"
        return (
            f"{100 * (plain.mean - self.mean):.0f} points below erm" if plain.mean - self.mean > FAR else ""
        )

    def __str__(self) -> str:
        if not self.accuracies:
            return "—" if self.refused else "failed"
        apart = statistics.pstdev(self.accuracies)
        return f"{100 * self.mean:.1f} ± {100 * apart:.1f}"


def measure(world: World, method: str, way: str, seeds: int) -> Cell:
    """Every seed of one method by one way."""
    try:
        return Cell(tuple(WAYS[way](world, method, seed) for seed in range(seeds)))
    except Diverged as error:
        return Cell(failed=str(error))
    except UserError as error:
        return Cell(refused=str(error))


def reason_for(method: str, way: str) -> str:
    """Why this figure may be low, if it may."""
    return REASONS.get(f"{method} {way}", REASONS.get(method, ""))


def table(world: World, names: Sequence[str], ways: Sequence[str], seeds: int) -> list[str]:
    """Print a row for each method as it is known; returns what is wrong."""
    images, wrong, notes = len(world.images["test"]), [], []
    plain = {way: measure(world, PLAIN, way, seeds) for way in ways}
    print("| method | " + " | ".join(ways) + " | |\n|---|" + "---:|" * len(ways) + "---|")
    for name in names:
        row = plain if name == PLAIN else {way: measure(world, name, way, seeds) for way in ways}
        faults = {way: row[way].fault(plain[way], images, reason_for(name, way)) for way in ways}
        said = [f"{way}: {fault}" for way, fault in faults.items() if fault]
        allowed = sorted({reason_for(name, way) for way in ways if row[way].fault(plain[way], images, "")})
        wrong += [f"{name}, {text}" for text in said]
        cells = " | ".join(str(row[way]) for way in ways)
        print(f"| {name} | {cells} | {'; '.join([*said, *filter(None, allowed)])} |", flush=True)
        notes += [f"{name}, {way}: {row[way].refused}" for way in ways if row[way].refused]
    print("\n" + "\n".join(f"- {note}" for note in notes))
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make sanity", description="Does every method train?")
    parser.add_argument("--methods", nargs="*", default=[], help="default: all of the catalogue")
    parser.add_argument("--ways", nargs="*", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="where features are kept; default: the usual place")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.getLogger("probe").setLevel(logging.ERROR)
    os.environ.setdefault("TQDM_DISABLE", "1")
    torch.set_num_threads(1)  # so little work that threads wait for each other, above all beside other work
    if TINY.name not in backbones.names():
        backbones.register(TINY)
    with tempfile.TemporaryDirectory() as work:
        world = World(given.cache, Path(work))
        wrong = table(world, given.methods or methods.names(), given.ways, given.seeds)
    print("\n" + ("\n".join(["wrong:", *wrong]) if wrong else "every method trains"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
