"""What a recipe says about training: one field per choice. No torch here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from probe.recipe.base import Section
from probe.recipe.errors import OwnWords

Fraction = Annotated[float, Field(ge=0, le=1)]

# Settings whose defaults depend on the family of networks.
OPEN = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "layer_decay", "warmup_epochs", "clip")


class AugmentConfig(Section):
    """Random changes of training images; fine-tuning only, because cached features have no pixels left."""

    # with a flip; auto: mild where weights are pretrained, else the backbone's own
    crop: Literal["auto", "resized-crop", "mild-crop", "padded-crop", "none"] = "auto"
    policy: Literal["none", "autoaugment", "randaugment", "trivialaugment"] = "none"  # of colours and shapes
    operations: int = Field(2, ge=1, le=10)  # RandAugment's N
    magnitude: int = Field(10, ge=0, le=30)  # RandAugment's M
    erase: Literal["none", "erasing", "cutout"] = "none"  # a random box, or a square of half the side
    mix: Literal["none", "mixup", "cutmix", "both"] = "none"  # of two images and their labels; both: a coin
    alpha: float = Field(1.0, gt=0)  # of the Beta distribution that the mixing weight is drawn from


class TrainConfig(Section):
    """Training by gradient steps: `--solver sgd` on features, `--finetune` on images.

    What is None is filled in: on images by the backbone's family and the number of images
    (`probe.train.family_defaults`), on features by `probe.train.sgd`. What it became is in result.json and
    log.jsonl. The word auto means None too.
    """

    epochs: int | None = Field(None, gt=0)
    batch_size: int | None = Field(None, gt=0)  # samples per optimiser step, over all processes
    # Samples that a process holds at once; auto: what fits into memory. What couples the samples of a batch
    # (pairs, class weights, batch-norm) then acts within a micro-batch.
    micro_batch: Annotated[int, Field(gt=0)] | Literal["auto"] | None = None
    sampler: Literal["instance", "sqrt", "balanced", "pairs"] = "instance"  # which samples make an epoch
    # Images of a class that a batch holds together; auto: what the method's loss asks for, where classes are
    # more than half the batch. 1: as they come.
    partners: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    head: Literal["auto", "linear", "cosine", "etf", "adapter"] = "auto"  # auto: what the method's loss takes
    # Cosine heads on frozen features, or on pretrained ones from class means: angles between centred and
    # whitened features (`probe.core.whitening`), not between raw ones.
    whiten: bool = True
    # The head at step 0. auto: on pretrained weights the exact probe (LP-FT), class means for a cosine head.
    start: Literal["auto", "random", "means", "zeroshot", "probe"] = "auto"

    optimizer: Literal["adamw", "sgd"] | None = None
    lr: float | None = Field(None, gt=0)  # peak rate; None, on images: searched (`probe.train.lr_search`)
    momentum: float = Field(0.9, ge=0, lt=1)  # of sgd
    weight_decay: float | None = Field(None, ge=0)  # not on norms and biases
    layer_decay: float | None = Field(None, gt=0, le=1)  # rate of a layer / rate of the layer above it
    warmup_epochs: float | None = Field(None, ge=0)  # linear, before the schedule
    # After the warm-up. cosine: half a cosine to 0; steps: times `milestone_factor` at each milestone, which
    # is an epoch, or a part of the epochs where it is below 1.
    schedule: Literal["cosine", "steps"] = "cosine"
    milestones: tuple[Annotated[float, Field(gt=0)], ...] = (0.8, 0.9)
    milestone_factor: float = Field(0.1, gt=0, lt=1)
    clip: Annotated[float, Field(gt=0)] | Literal["none"] | None = None  # largest norm of the gradient
    ema: float | None = Field(
        None, gt=0, lt=1
    )  # decay of a moving average of the weights, which is then used

    augment: AugmentConfig = AugmentConfig()
    # Which weights of the encoder learn, beside the head: all, head (none), norms, last:N (layers), or lora:R
    # (products of rank R beside its linear layers, merged into them at the end).
    tune: str = "all"
    # frozen: statistics and affine stay as loaded; auto: frozen where there are pretrained weights, since the
    # statistics of small batches of other images can undo them at the first step.
    batch_norm: Literal["auto", "train", "frozen"] = "auto"
    drop_path: float = Field(0.0, ge=0, lt=1)  # largest rate, rising with depth (ViTs)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    grad_checkpointing: bool = False  # recompute activations: less memory, a third more time
    channels_last: bool | None = None  # memory layout; None: where it is faster, in whole convnets
    compile: bool = False  # torch.compile

    keep: Literal["last", "best"] = "last"  # best epoch on held-out rows; last trains on those rows too
    wise: tuple[Fraction, ...] = ()  # WiSE-FT: weights of the tuned model between start (0) and end (1)
    checkpoint_minutes: float = Field(10.0, gt=0)  # beside the checkpoint at each epoch's end
    workers: int | None = Field(None, ge=0)  # decoding processes; None: by the number of cores
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()  # beside log.jsonl

    @field_validator("wise", "trackers", "milestones", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str | int | float) else given

    @field_validator(*OPEN, "channels_last", mode="before")
    @classmethod
    def _auto_is_open(cls, given: Any) -> Any:
        return None if given == "auto" else given

    @field_validator("tune")
    @classmethod
    def _one_of_the_ways(cls, given: str) -> str:
        if re.fullmatch(r"all|head|norms|(last|lora):[1-9]\d{0,3}", given) is None:
            raise OwnWords(
                f"recipe: train.tune: {given!r:.80} is none of all, head, norms, last:N and lora:R "
                "(numbers from 1 to 9999)"
            )
        return given

    @property
    def selects(self) -> bool:
        """Is something chosen on held-out rows, so that they must not be trained on?"""
        return self.keep == "best" or len(self.wise) > 1
