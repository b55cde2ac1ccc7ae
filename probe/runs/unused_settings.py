"""Settings that a recipe gives and nothing would read. No torch here.

A setting that changes nothing is a mistake about what is run, so it is refused before anything is computed. A
default value is never one: the resolved recipe of an old run, which names every key, runs again as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from probe import methods
from probe.errors import UserError
from probe.losses.spec import LossSpec
from probe.recipe import Recipe
from probe.runs import selecting


@dataclass(frozen=True)
class Rule:
    """Keys (or whole sections), when they have an effect, and what to say where they have none."""

    keys: tuple[str, ...]
    acts: Callable[[Recipe], bool]
    otherwise: str

    def covers(self, key: str) -> bool:
        """Is this dotted key one of the rule's, or inside one?"""
        return any(key == own or key.startswith(f"{own}.") for own in self.keys)


def _loss(r: Recipe) -> LossSpec:
    """The loss that is minimised; the values of a range share it."""
    method = selecting.points(r)[0]
    return methods.inner(method.name, method.params)


def _owns_head(r: Recipe) -> bool:
    """Is the classifier the loss's own (LGM's Gaussians)?"""
    return _loss(r).owns_head


def _unscaled_head(r: Recipe) -> bool:
    """Do the head's weights have a direction, or a place, and no size that l2 could penalise?"""
    takes = _loss(r).takes
    return _owns_head(r) or r.train.head == "cosine" or (r.train.head == "auto" and takes == "cosines")


def _whitens(r: Recipe) -> bool:
    """Is there a cosine head on features that exist before the training?"""
    head = r.train.head
    wanted = head in ("cosine", "etf") or (head in ("auto", "adapter") and _loss(r).takes == "cosines")
    wanted = wanted or (head == "auto" and methods.class_of(r.method.name).head == "cosine")
    if not wanted or not r.finetune:
        return wanted
    return not r.from_scratch and r.train.start in ("auto", "means")


def _optimizer(r: Recipe) -> str:
    """What is used where none is given: `probe.train.family_defaults` and `probe.train.sgd`."""
    return r.train.optimizer or ("adamw" if r.finetune and not r.from_scratch else "sgd")


def _starts_from_solver(r: Recipe) -> bool:
    """Fine-tuning from an exact head; k-NN and zero-shot leave none, and SGD is the training itself."""
    return r.solver.name == "ridge" and r.train.start not in ("random", "means", "zeroshot")


def _chooses(r: Recipe) -> bool:
    """Is there a hyper-parameter to choose: a range, or l2?"""
    if selecting.has_ranges(r):
        return True
    if r.finetune or r.solver.l2 is not None or r.solver.name in ("knn", "zeroshot"):
        return False
    return r.solver.name != "sgd" or (r.train.weight_decay is None and not _unscaled_head(r))


def _is_stored_head(r: Recipe) -> bool:
    """Is the first stage a run whose head is changed, and none solved for?"""
    stage, first = methods.catalogue.is_second_stage(r.method.name), r.method.params.get("first")
    return stage and first is not None and r.method.name != "crt"


def _fits_batch(r: Recipe) -> bool:
    largest = r.train.batch_size or LARGEST_BATCH
    return not isinstance(r.train.micro_batch, int) or r.train.micro_batch <= largest


LARGEST_BATCH = 256  # where none is given: on features, and at most on images, where it follows the data

NEEDS_IMAGES = tuple(
    f"train.{name}"
    for name in (
        *("augment", "start", "layer_decay", "batch_norm", "drop_path", "tune"),
        *("grad_checkpointing", "channels_last", "compile", "wise", "workers"),
    )
)

RULES = (
    Rule(("train",), lambda r: r.trains, "nothing is trained here; use --solver sgd, or --finetune"),
    Rule(
        NEEDS_IMAGES,
        lambda r: r.finetune or not r.trains,
        "it is for images and their encoder, and features are trained here; use --finetune",
    ),
    Rule(
        ("solver.name",),
        lambda r: not r.finetune or _starts_from_solver(r),
        "--finetune trains the head together with the backbone; use one of the two",
    ),
    Rule(("solver.k", "solver.weighted"), lambda r: r.solver.name == "knn", "it is for --solver knn"),
    Rule(
        ("solver.l2", "solver.grid"),
        lambda r: r.solver.name not in ("knn", "zeroshot"),
        "this solver has no penalty; use lbfgs, ridge or sgd",
    ),
    Rule(
        ("solver.l2", "solver.grid"),
        lambda r: r.solver.name != "sgd" or r.finetune or not _unscaled_head(r),
        "this method's head has no size to be penalised; train.weight_decay is its decay",
    ),
    Rule(
        ("solver.l2", "solver.grid"),
        lambda r: r.solver.name != "sgd" or r.finetune or r.train.weight_decay is None,
        "train.weight_decay is given, and is the penalty of a step; use one of the two",
    ),
    Rule(
        ("solver.l2", "solver.grid", "solver.tol"),
        lambda r: not _is_stored_head(r),
        "the head of method.first is changed, and none is solved for",
    ),
    Rule(
        ("solver",),
        lambda r: not r.from_scratch,
        "a net that is trained from scratch has no features to solve anything on",
    ),
    Rule(
        ("train.head",), lambda r: not _owns_head(r), "this method's loss has a head of its own, and no other"
    ),
    Rule(
        ("train.whiten",),
        _whitens,
        "it is for cosine heads, on frozen features or started from class means of pretrained ones",
    ),
    Rule(("solver.grid",), lambda r: r.solver.l2 is None, "solver.l2 is given, so none is searched"),
    Rule(("solver.tol",), lambda r: r.solver.name == "lbfgs", "it is for --solver lbfgs"),
    Rule(("train.momentum",), lambda r: _optimizer(r) != "adamw", "adamw has none; it is for sgd"),
    Rule(
        ("train.milestones", "train.milestone_factor"),
        lambda r: r.train.schedule == "steps",
        "it is for train.schedule=steps",
    ),
    Rule(("train.micro_batch",), _fits_batch, "a batch is smaller; give at most train.batch_size"),
    Rule(
        ("train.partners",),
        lambda r: r.train.sampler in ("instance", "pairs"),
        "it is for train.sampler=instance or pairs",
    ),
    Rule(
        ("train.augment.operations", "train.augment.magnitude"),
        lambda r: r.train.augment.policy == "randaugment",
        "it is for train.augment.policy=randaugment",
    ),
    Rule(
        ("train.augment.alpha",),
        lambda r: r.train.augment.mix != "none",
        "it is for train.augment.mix=mixup, cutmix or both",
    ),
    Rule(
        ("train.layer_decay", "train.batch_norm", "train.grad_checkpointing"),
        lambda r: r.train.tune != "head",
        "train.tune=head leaves the encoder as it is",
    ),
    Rule(
        ("features.views", "features.test_views"),
        lambda r: not r.finetune,
        "--finetune learns from images, of which train.augment makes views",
    ),
    Rule(
        ("select",),
        _chooses,
        "nothing is chosen here; leave l2 open, or give a range such as method.tau=[0,1]",
    ),
    Rule(
        ("select",),
        lambda r: not methods.catalogue.is_second_stage(r.method.name) or selecting.has_ranges(r),
        "a second stage chooses by the data set's metric; give a range such as method.tau=[0,1]",
    ),
    Rule(("select.budget",), lambda r: r.select.name == "budget", "it is for --select budget"),
    Rule(("data.draw",), lambda r: r.data.shots is not None, "it is for data.shots"),
    Rule(("data.profile",), lambda r: r.data.imbalance is not None, "it is for data.imbalance"),
)


def check(recipe: Recipe) -> None:
    """Refuse settings that would change nothing: all of them, in one line."""
    given, said = dict(_flat(recipe.model_dump())), []
    usual = dict(_flat(Recipe().model_dump()))
    left = [key for key, value in given.items() if key in usual and value != usual[key]]
    for rule in RULES:
        idle = [key for key in left if rule.covers(key)]
        if idle and not _acts(rule, recipe):
            left = [key for key in left if key not in idle]
            said.append(f"{', '.join(f'{key}={given[key]}' for key in idle)} ({rule.otherwise})")
    if said:
        raise UserError(f"settings without effect: {'; '.join(said)}. Leave them out")


def _acts(rule: Rule, recipe: Recipe) -> bool:
    try:
        return rule.acts(recipe)
    except UserError:  # of the method, whose own check says so
        return True


def _flat(section: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a recipe by its dotted key."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value
