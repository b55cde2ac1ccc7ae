"""The sections of a recipe: one small class per concern, one comment per field.

Places (cache, output) are not part of a recipe, because they do not change the result. An unknown key is an
error that names the nearest known one (`probe.recipe.errors`). No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from probe.errors import UserError, nearest
from probe.recipe import RESULT, grammar, parts
from probe.recipe.base import Section
from probe.recipe.errors import OwnWords
from probe.recipe.train_settings import TrainConfig
from probe.system.devices import NAMES, check_name


@contextmanager
def own_words() -> Iterator[None]:
    """Inside a validator: a UserError becomes one of the recipe's mistakes, in its own words."""
    try:
        yield
    except UserError as error:
        raise OwnWords(str(error).encode(errors="backslashreplace").decode()) from None


class PartConfig(Section):
    """An encoder, and where its features are taken."""

    # a registered name, or timm:<name>, open_clip:<model>/<tag>, hf:<id or folder>
    name: str = "effnet-lite0"
    weights: str | None = None  # a local file or folder instead of the registered ones; scratch: none
    # where features are taken, e.g. CLIP's "projected" or "pooled"; None: the backbone's default
    tap: str | None = None
    image_size: int | None = Field(None, gt=0, le=4096)  # input pixels; None: the backbone's default


class BackboneConfig(PartConfig):
    """The encoder whose features are probed, or that is fine-tuned; `probe.recipe.parts` for several."""

    also: tuple[PartConfig, ...] = ()  # further parts, whose features stand beside those of the first

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        with own_words():
            return parts.understood(value)

    @model_validator(mode="after")
    def _different(self) -> Self:
        with own_words():
            if len(self.also) >= parts.MOST:
                raise UserError(f"recipe: backbone: {len(self.parts)} parts; at most {parts.MOST}")
            if len({part.model_dump_json() for part in self.parts}) < len(self.parts):
                raise UserError(f"recipe: backbone: {self.title} has a part twice; name each once")
        return self

    @property
    def parts(self) -> list[PartConfig]:
        """All encoders whose features stand side by side; most runs have one."""
        return [PartConfig(**{key: getattr(self, key) for key in PartConfig.model_fields}), *self.also]

    @property
    def title(self) -> str:
        """What tables call it: `effnet-lite0+effnet-lite1`; parts of one name by their taps or sizes."""
        names = [part.name for part in self.parts]
        told = [
            name if names.count(name) == 1 else f"{name}({part.tap or part.image_size or 'default'})"
            for name, part in zip(names, self.parts, strict=True)
        ]
        return parts.SIGN.join(told)


VIEWS = ("center", "flip")  # see `probe.features.views`
MOST_VIEWS = 64  # crops: each costs as much as a first extraction


def view_choice(value: Any, key: str, words: Sequence[str]) -> str | int:
    """One of the words, or a number of crops; anything else is refused."""
    if isinstance(value, str) and value in words:
        return value
    number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value) else value
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= MOST_VIEWS:
        return number
    near = nearest(value, words) if isinstance(value, str) else ""
    raise UserError(
        f"recipe: {key}: {value!r:.80} is none of {', '.join(words)}, or a number of crops "
        f"from 1 to {MOST_VIEWS}{near}"
    )


class DataConfig(Section):
    """The data set, and how much of it validates."""

    name: str = "digits"  # a registered name, a hub id, or a path; see docs/bring-your-own.md
    root: str | None = None  # a local copy of a registered data set
    list_files: str | None = None  # a folder of list files ("path label" a line) that name the splits' images
    revision: str | None = None  # the hub revision
    config: str | None = None  # one of several data sets in a repository or folder
    image: str | None = None  # the column of the images or their paths, where it is not found by itself
    label: str | None = None  # the column of the classes
    # what serves as which split: {test: validation}
    splits: Mapping[str, str] = Field(default_factory=dict)
    subset: str | tuple[str, ...] | None = None  # only these classes, or the ids in a file
    test_fraction: float | None = Field(None, gt=0, lt=1)  # cut from train without a test split; None: 0.2
    val: Literal["auto", "train"] = "auto"  # train: no official validation split, but a part of train
    shots: int | None = Field(None, gt=0)  # only so many training images of each class; val is left out
    draw: int = Field(0, ge=0)  # which shots: 0, 1, ... are different images
    # test images with several right answers: ImageNet's real.json, or a mapping of ids to class numbers
    real_labels: str | None = None
    attribute: str | None = None  # a column that groups images (camera, hospital); results show its values
    imbalance: float | None = Field(None, ge=1)  # make it long-tailed: largest class / smallest class
    profile: Literal["exp", "step"] = "exp"  # how a long tail falls
    val_fraction: float = Field(0.2, gt=0, lt=1)  # held out from train without an official split
    skip_bad_images: bool = False  # leave out images that cannot be read, and count them


class FeaturesConfig(Section):
    """How features are extracted, stored and scaled."""

    dtype: Literal["float32", "float16"] = "float32"  # of the cache; float16 halves it
    # of the forward pass; --fast: what this machine's device is fastest in (`probe.features.precision`)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    scaling: Literal["auto", "none", "standard", "l2"] = "auto"  # before the head; auto: by backbone
    batch_size: int | None = Field(None, gt=0)  # None: chosen by the model's input size
    workers: int | None = Field(None, ge=0)  # decoding processes; None: by the number of cores
    # What a probe learns from: "center", the evaluation crop of each image; "flip", that and its mirror
    # image; or a number of seeded crops beside it. However many, an image counts once.
    views: str | int = "center"
    test_views: str | int = "auto"  # the views whose logits a prediction averages; auto: those of `views`

    @field_validator("views", "test_views", mode="before")
    @classmethod
    def _view_choice(cls, value: Any, info: ValidationInfo) -> str | int:
        words = VIEWS if info.field_name == "views" else ("auto", *VIEWS)
        with own_words():
            return view_choice(value, f"features.{info.field_name}", words)

    @property
    def views_tested(self) -> str | int:
        """`test_views`, with "auto" resolved."""
        return self.views if self.test_views == "auto" else self.test_views


class MethodConfig(Section):
    """The method, as a mapping or as it is written: `drw(ldam, after=0.7)`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "erm"  # see `probe methods`; every other key is a parameter of the method
    # what robust and re-weighting methods act on: the classes, the values of data.attribute, or both together
    groups: Literal["class", "attribute", "both"] = "class"

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        with own_words():
            return grammar.understood(value)

    @model_serializer(mode="wrap")
    def _without_default(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Groups are written down where they are not the classes, as parameters are that were given."""
        content: dict[str, Any] = serialise(self)
        if content["groups"] == "class":
            del content["groups"]
        return content

    @property
    def params(self) -> dict[str, Any]:
        """Every key but the name and the groups."""
        return dict(self.model_extra or {})


class SolverConfig(Section):
    """What finds the head, and its numbers."""

    name: Literal["lbfgs", "ridge", "knn", "zeroshot", "sgd"] = "lbfgs"
    l2: float | None = Field(None, gt=0)  # weight of the penalty; None: chosen on validation rows
    grid: Literal["coarse", "full"] = "coarse"  # coarse to fine, or all 96 values
    tol: float = Field(1e-7, ge=0, lt=1)  # lbfgs: certified relative excess of the objective
    k: int = Field(20, gt=0)  # neighbours of k-NN
    weighted: bool = True  # k-NN: votes weighted by exp(similarity / 0.07), or plain
    tf32: bool = False  # may float32 products on NVIDIA GPUs be rounded to TF32? Certified all the same


class SelectConfig(Section):
    """What validation maximises, for l2 and every parameter that is given as a range."""

    # auto: the data set's metric. worst-tenth: the mean of the worst tenth of the classes. budget: hard,
    # among what costs the mean per class little
    name: Literal["auto", "overall", "mean-per-class", "hard", "worst-tenth", "budget"] = "auto"
    budget: float = Field(0.5, ge=0, le=100)  # points that the mean per class may be below the best


# Keys that came after runs had been stored, and the value of those runs: at that value they are not part of
# the digest, so that runs from before keep their names.
LATER: dict[str, Any] = {
    "versus": "auto",
    "first_seed": 0,
    "select": {"name": "auto", "budget": 0.5},
    "train.partners": "auto",
    "train.tune": "all",
    "backbone.also": (),
    "data.list_files": None,
    "data.config": None,
    "data.image": None,
    "data.label": None,
    "data.splits": {},
    "data.subset": None,
    "data.test_fraction": None,
    "data.val": "auto",
    "data.shots": None,
    "data.draw": 0,
    "data.real_labels": None,
    "data.attribute": None,
    "features.views": "center",
    "features.test_views": "auto",
    "features.precision": "float32",
    "train.whiten": True,
    "train.schedule": "cosine",
    "train.milestones": (0.8, 0.9),
    "train.milestone_factor": 0.1,
}

LOSSLESS = ("ridge", "knn", "zeroshot")  # solvers that minimise no loss of a method
# by the number of training images: the papers' schemes, whose bounds are in `probe.evaluation.groups`
COUNT_GROUPS = ("many/medium/few", "head/torso/tail")
RANKINGS = ("crossfit", "paper")  # by erm's held-out accuracy on train; by its accuracy on the test images


class Reference(Section):
    """Groups by the test accuracy of another run."""

    reference: str  # a run folder: thirds of the classes by its test accuracy


def group_source(value: Any) -> str | Reference:
    """What groups the classes: a word of RANKINGS or COUNT_GROUPS, a JSON file that names them, or a run.

    A bare path is a file when it ends in .json (and is not a run's result.json), else the folder of a run.
    """
    if isinstance(value, Reference):
        return value
    if isinstance(value, dict) and set(value) == {"reference"} and isinstance(value["reference"], str):
        return Reference(reference=value["reference"])
    if not isinstance(value, str):
        raise UserError(
            "recipe: groups: write crossfit, paper, many/medium/few, head/torso/tail, a JSON file, or "
            "{reference: RUN FOLDER}"
        )
    path = Path(value)
    if value in (*RANKINGS, *COUNT_GROUPS) or (path.suffix == ".json" and path.name != RESULT):
        return value
    if "/" not in value:
        raise UserError(
            f'recipe: groups: "{value}" is not a ranking{nearest(value, (*RANKINGS, *COUNT_GROUPS))}; '
            "a run is named with its path"
        )
    return Reference(reference=value)


class Recipe(Section):
    """Everything that determines a run's result."""

    backbone: BackboneConfig = BackboneConfig()
    data: DataConfig = DataConfig()
    features: FeaturesConfig = FeaturesConfig()
    method: MethodConfig = MethodConfig()  # default: mr2 where a probe's solver minimises a loss, else erm
    solver: SolverConfig = SolverConfig()
    select: SelectConfig = SelectConfig()  # what the hyper-parameters are chosen for
    finetune: bool = False  # train the backbone too, instead of solving for a head on its features
    train: TrainConfig = TrainConfig()  # of solver sgd, and of fine-tuning
    groups: str | Reference = "crossfit"  # easy, medium, hard, or a file's own groups; see `group_source`
    seeds: int = Field(1, gt=0, le=1000)  # holdouts and initialisations; a run numbers its own from 0
    first_seed: int = Field(0, ge=0, le=1_000_000)  # what its first one is: 2 goes on after a run of two
    # where images are encoded, heads solved and networks trained: auto (a GPU where there is one), cpu, cuda,
    # cuda:1, xpu, mps (`probe.system.devices`)
    device: str = Field("auto", pattern=rf"^({NAMES.pattern})$")
    # The erm of "vs erm": trained with the same settings, or the exact probe of the frozen backbone; auto:
    # the probe, except for nets from scratch (`probe.runs.reference`).
    versus: Literal["auto", "same", "probe"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _device_of_all(cls, value: Any) -> Any:
        """Stored recipes of earlier builds have the device of the solver, and of nothing else."""
        solver = value.get("solver") if isinstance(value, dict) else None
        if not isinstance(solver, dict) or "device" not in solver:
            return value
        rest = {key: setting for key, setting in solver.items() if key != "device"}
        return {"device": solver["device"], **value, "solver": rest}

    @model_validator(mode="before")
    @classmethod
    def _headline_method(cls, value: Any) -> Any:
        method = value.get("method") if isinstance(value, dict) else ""
        if method is None or (isinstance(method, dict) and method.get("name") is None):
            solver = value.get("solver", {})
            name = solver.get("name", "lbfgs") if isinstance(solver, dict) else solver
            # fine-tuning is plain too: what it is compared with comes first
            plain = name in LOSSLESS or value.get("finetune", False)
            # `method.lam=0.05` alone is a parameter of the method that would be run without it
            return {**value, "method": {**(method or {}), "name": "erm" if plain else "mr2"}}
        return value

    @field_validator("device", mode="before")
    @classmethod
    def _device_name(cls, value: Any) -> Any:
        with own_words():
            if isinstance(value, str):
                check_name(value)
        return value

    @field_validator("groups", mode="before")
    @classmethod
    def _group_source(cls, value: Any) -> str | Reference:
        with own_words():
            return group_source(value)

    @property
    def trains(self) -> bool:
        """Is the head trained by gradient steps, instead of by an exact solver?"""
        return self.finetune or self.solver.name == "sgd"

    @property
    def digest(self) -> str:
        """A hash of everything that determines the result."""
        content = self.model_dump()
        for key, default in LATER.items():
            *parents, last = key.split(".")
            section = content
            for parent in parents:
                section = section[parent]
            if section[last] == default:
                del section[last]
        # What these heads are trained on was another; a method's own cosine head tells by its version.
        if self.train.head in ("cosine", "adapter") and self.train.whiten:
            content["train"]["whiten"] = True
        del content["device"], content["solver"]["tf32"]  # how a result is computed, not what it is
        if content["train"]["channels_last"] is None:  # changes the last digits only, and was off before
            content["train"]["channels_last"] = False
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def from_scratch(self) -> bool:
        """Is a network trained that has no pretrained weights?"""
        from backbones import catalogue  # whose rows come from installed packages too
        from backbones.sources import SCRATCH, Scratch

        weights = self.backbone.weights
        none = weights is None and isinstance(catalogue.find(self.backbone.name).source, Scratch)
        return self.finetune and (none or weights == SCRATCH)

    @property
    def plain(self) -> Recipe:
        """The same settings under `erm`, where `select` is left out if that leaves nothing to choose."""
        given = self.finetune or self.solver.l2 is not None or self.train.weight_decay is not None
        select = SelectConfig() if given else self.select
        return self.model_copy(
            update={"method": MethodConfig(name="erm"), "versus": "auto", "select": select}
        )

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as `recipe.yaml` stores it."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
