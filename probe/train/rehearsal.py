"""The memory estimate of a recipe's fine-tuning, from the recipe alone."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import torch

import backbones
from backbones.backbone import Backbone
from probe.data import Dataset
from probe.heads import Head
from probe.recipe import Recipe
from probe.recipe.train_settings import TrainConfig
from probe.train import family_defaults, memory
from probe.train.build import make_head, make_method
from probe.train.inputs.feed import BATCH
from probe.train.memory import MemoryEstimate
from probe.train.model.network import Network

if TYPE_CHECKING:
    from accelerate import Accelerator

log = logging.getLogger("probe.train")


def announce(backbone: Backbone, head: Head, settings: TrainConfig, accelerator: Accelerator) -> None:
    """One line before training starts on a GPU, with what the GPU has where it can tell."""
    device = accelerator.device
    if device.type == "cpu" or not accelerator.is_main_process:
        return
    has = (
        f"; the GPU has {torch.cuda.mem_get_info(device)[1] / memory.GB:.1f}" if device.type == "cuda" else ""
    )
    log.info("%s%s", of_training(backbone, head, settings, accelerator.num_processes), has)


def of_training(backbone: Backbone, head: Head, settings: TrainConfig, processes: int) -> MemoryEstimate:
    """What a step of these settings holds on each of the processes; the network is not changed."""
    share = -(-(settings.batch_size or BATCH) // processes)
    images = settings.micro_batch if isinstance(settings.micro_batch, int) else share
    network = Network(backbone.encoder, head)
    with torch.random.fork_rng(devices=[]):  # dropout draws, also without values
        return memory.estimate(
            deepcopy(network).requires_grad_(True),  # with `train.tune`, fewer weights learn: a little less
            images,
            backbone.preprocessing.size,
            optimizer=settings.optimizer or "adamw",
            average=settings.ema is not None,
            half=settings.precision != "fp32",
        )


def rehearsed(recipe: Recipe, data: Dataset, processes: int) -> MemoryEstimate:
    """The estimate of a recipe that fine-tunes."""
    backbone = backbones.load(**recipe.backbone.parts[0].model_dump())
    family = family_defaults.family(backbone)
    labels = np.array(data["train"].labels)
    settings = family_defaults.resolve(recipe.train, family, len(labels), split=False)
    classes = len(data.class_names)
    method = make_method(recipe.method, num_classes=classes, labels=labels, dim=backbone.dim, scratch=False)
    head = make_head(method, settings, dim=backbone.dim, num_classes=classes, seed=0)
    return of_training(backbone, head, settings, processes)
