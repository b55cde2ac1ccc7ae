"""Fine-tuning: backbone and head are trained on images, from a chosen start to a chosen end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.core.scaling import Scaling
from probe.data import Dataset
from probe.errors import UserError
from probe.heads import Head, export
from probe.heads.fitted import FittedHead, mean_of
from probe.losses.base import Loss
from probe.recipe import MethodConfig, Recipe
from probe.train import family_defaults, frequency, rehearsal
from probe.train.build import check, make_head, make_method
from probe.train.finetune_job import FinetuneJob, prepare
from probe.train.loop import Training
from probe.train.lr_search import Search
from probe.train.model import encoder_options, experts, teacher, tuning, wise_ft
from probe.train.model import tuned_weights as weights
from probe.train.model.head_init import Start, set_head
from probe.train.model.network import Network
from probe.train.seeding import derive_seed
from probe.train.task import Task

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from probe.methods.base import Method
    from probe.methods.protocols import NetworkLike
    from probe.probing.problem import ProbeProblem

JUDGES = 1000  # held-out rows that judge a search for the learning rate, at most


@dataclass(frozen=True)
class FinetunedModel:
    """The result of fine-tuning: everything that classifies, and the scores of the test images."""

    backbone: Backbone  # with the kept weights, frozen, on the CPU
    head: FittedHead  # on the tuned backbone's features
    weights: Path  # model.safetensors: the tuned encoder
    scores: Tensor  # N x K: logits of the test split
    loss: Loss  # after training, with its class statistics
    start: FittedHead | None = None  # at step 0, on the starting backbone's features; None: it was random
    record: dict[str, Any] = field(default_factory=dict)
    held: Tensor | None = None  # logits of the held-out rows; None where they were trained on too


def finetune(
    recipe: Recipe,
    data: Dataset,
    held: NDArray[np.int64],
    *,
    folder: Path,
    seed: int = 0,
    pose: Callable[[Backbone], ProbeProblem] | None = None,
    ids: Mapping[str, Sequence[str]] | None = None,
    show: bool = True,
    test: bool = True,
) -> FinetunedModel:
    """Train as the recipe says, in `folder`, which keeps checkpoints, the log and the tuned weights.

    `held` counts rows over train and, where there is one, val; `ids` names the usable samples of each split,
    where some images cannot be read. `pose(backbone)` gives the problem on the starting backbone's features;
    the starts "means" and "probe" need it, and "auto", which is one of them on pretrained weights. Killed and
    called again, it resumes from the last checkpoint. Test images are read once, at the end; without `test`
    never, and there are no scores of them.
    """
    check(recipe.method, recipe.train)
    job = prepare(recipe, data, held, seed=seed, folder=folder, ids=ids)
    method = _method(job, pose)
    taught = _teach(job, method)
    head = make_head(method, job.settings, dim=job.backbone.dim, num_classes=job.num_classes, seed=seed)
    job = job.starting(head).searching(method)
    start = _start(job, pose)
    search = _search(job, head, start)
    scaling = set_head(job.settings.start, head, start)
    begin = None if job.settings.start == "random" else export.fitted(head, scaling)
    digest = " ".join([job.digest, *taught])  # before anything moves
    rehearsal.announce(job.backbone, head, job.settings, job.accelerator)
    dropped = _switch_on(job)
    training = _training(job, method, head, scaling, folder, digest, show, search)
    training.run()
    encoder_options.restore(dropped)
    return _finish(job, training, scaling, folder, begin, test)


def _method(job: FinetuneJob, pose: Callable[[Backbone], ProbeProblem] | None) -> Method:
    """The recipe's method, before it has built anything."""
    recipe, groups = job.recipe, job.samples.groups
    method = make_method(
        _with_frequency(job, pose),
        num_classes=job.num_classes,
        labels=job.samples.labels[job.trained],
        dim=job.backbone.dim,
        scratch=job.from_scratch,
        group_counts=None if groups is None else np.maximum(np.bincount(groups[job.trained]), 1),
    )
    method.loss.measures_frequency = recipe.train.selects and frequency.is_open(recipe.method)
    method.from_scratch = job.from_scratch
    return method


def _teach(job: FinetuneJob, method: Method) -> list[str]:
    """Give the method its teacher, where it names one; returns that one's fingerprint."""
    if method.teacher is None:
        return []
    found = teacher.load(Path(method.teacher), job.backbone, job.data.class_names)
    method.taught_by(found)
    return [found.fingerprint]


def _with_frequency(job: FinetuneJob, pose: Callable[[Backbone], ProbeProblem] | None) -> MethodConfig:
    """The recipe's method, with the effective frequencies that its loss starts from, where it has such."""
    method = job.recipe.method
    if not frequency.is_open(method):
        return method
    if job.from_scratch or pose is None:
        return frequency.equal(method, job.num_classes)
    return frequency.crossfitted(pose(job.backbone), method, job.recipe.solver, job.held, job.trained)


def _start(job: FinetuneJob, pose: Callable[[Backbone], ProbeProblem] | None) -> Start:
    def frozen() -> ProbeProblem:
        assert pose is not None, "the starts means and probe need the frozen problem"
        return pose(job.backbone)

    return Start(
        backbone=job.backbone,
        class_names=job.data.names_in_prompts,
        templates=job.data.templates,
        method=job.recipe.method,
        solver=job.recipe.solver,
        held=job.held,
        trained=job.trained,
        seed=job.seed,
        whiten=job.settings.whiten,
        pose=frozen,
    )


def _search(job: FinetuneJob, head: Head, start: Start) -> Search | None:
    """What finds the learning rate, where the recipe gives none; its trials do not see the held-out rows."""
    if job.settings.lr is not None:
        return None
    kept = np.setdiff1d(job.trained, job.held)
    if min(len(kept), len(job.held)) == 0:
        raise UserError(
            "no image is left to find the learning rate on: give train.lr, or add training images"
        )
    other = deepcopy(head)
    set_head(job.settings.start, other, replace(start, trained=kept))
    rng = np.random.default_rng(derive_seed(job.seed, "judges"))
    judges = np.sort(rng.permutation(job.held)[:JUDGES])
    return Search(
        family_defaults.rates(job.settings, job.family),
        train=job.loader(job.samples.subset(kept)),
        validation=job.loader(job.samples.subset(judges)),
        head={f"head.{name}": value for name, value in other.state_dict().items()},
    )


def _switch_on(job: FinetuneJob) -> list[tuple[nn.Module, str, nn.Module]]:
    """Make the encoder trainable, as far as the settings say, with their options; returns what to `restore`
    afterwards."""
    s, encoder = job.settings, job.backbone.encoder
    tuning.choose(encoder, s.tune, size=job.backbone.preprocessing.size, seed=job.seed)
    if s.grad_checkpointing:
        encoder_options.checkpoint_activations(encoder)
    return encoder_options.drop_paths(encoder, s.drop_path) if s.drop_path else []


def _training(
    job: FinetuneJob,
    method: Method,
    head: Head,
    scaling: Scaling,
    folder: Path | None,
    digest: str,
    show: bool,
    search: Search | None = None,
) -> Training:
    s = job.settings
    assert s.optimizer is not None
    assert s.epochs is not None
    task = Task(
        Network(job.backbone.encoder, head, scaling),
        method,
        job.loader(job.samples.subset(job.trained)),
        job.num_classes,
        optimizer=s.optimizer,
        epochs=s.epochs,
        validation=job.loader(job.samples.subset(job.held)) if s.selects else None,
        metric=job.data.metric,
    )
    return Training(
        task,
        s,
        seed=job.seed,
        folder=folder,
        digest=digest,
        show=show,
        accelerator=job.accelerator,
        search=search,
        about={"settings": family_defaults.described(s, job.family)},
    )


def _finish(
    job: FinetuneJob,
    training: Training,
    scaling: Scaling,
    folder: Path,
    begin: FittedHead | None,
    score_test: bool,
) -> FinetunedModel:
    """Choose between start and end where asked, score the test images, and save."""
    s, network, progress = job.settings, training.network, training.state.progress
    record: dict[str, Any] = {"epochs": progress.epochs, "micro_batch": training.feed.micro_batch}
    if "partners" in progress.epochs[-1]:
        record["partners"] = progress.epochs[-1]["partners"]
    record["settings"] = {**family_defaults.described(s, job.family), "lr": training.lr}
    record["trained_parameters"] = sum(p.numel() for p in training.engine.parameters)
    if progress.found is not None:
        record["search"] = progress.found
    if progress.best is not None:
        record["best_epoch"] = progress.best["epoch"]
    end = network.snapshot()
    if s.wise:
        rows = [_at(training, wise_ft.between(training.state.start, end, a), a) for a in s.wise]
        alpha = max(rows, key=lambda row: row["validation"])["alpha"] if len(rows) > 1 else s.wise[0]
        record |= {"wise": rows, "alpha": alpha}
        network.take(wise_ft.between(training.state.start, end, alpha))
    if s.selects:
        kept = network.snapshot()
        first, last = (_at(training, state)["validation"] for state in (training.state.start, kept))
        record["held_out"] = {"start": first, "end": last}
    mean = experts.kept(s)
    for expert in training.method.experts(network):
        tuning.merge(expert.encoder)
    training.objective.averages = mean
    held = None if training.task.validation is None else training.evaluate(training.task.validation)
    none = torch.empty(0, job.num_classes)
    scores = training.evaluate(job.loader(job.test)) if score_test else none
    trained = training.release()
    networks = trained.method.experts(trained.network)
    head = _join(job.backbone, networks if mean else networks[:1], scaling)
    if len(networks) > 1:
        record["experts"] = {"trained": len(networks), "predict": experts.number_of(job.backbone)}
    path = folder / weights.FILE
    if training.rank == 0:
        weights.save(job.backbone, path)
    training.accelerator.wait_for_everyone()
    return FinetunedModel(job.backbone, head, path, scores, trained.method.loss, begin, record, held)


def _join(backbone: Backbone, networks: Sequence[NetworkLike], scaling: Scaling) -> FittedHead:
    """The head of these networks, on the features of their encoders, which become the backbone's."""
    for network in networks:
        tuning.unwrap(network.encoder)
    heads = [export.fitted(network.head, scaling) for network in networks]
    if len(heads) == 1:
        return heads[0]
    states = [network.encoder.state_dict() for network in networks]  # the first is the backbone's own
    experts.widen(backbone, len(networks))
    assert isinstance(backbone.encoder, experts.SideBySide)
    for encoder, state in zip(backbone.encoder.experts, states, strict=True):
        encoder.load_state_dict(state)
    return mean_of(heads)


def _at(training: Training, state: dict[str, Tensor], alpha: float = 1.0) -> dict[str, Any]:
    """Give the network these weights, of one alpha, and see how they validate."""
    validation = training.task.validation
    if validation is None:
        return {"alpha": alpha}
    training.network.take(state)
    return {"alpha": alpha, "validation": training.validate(validation)}
