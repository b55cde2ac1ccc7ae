"""The validated description of a run, from YAML or flags.

One small class a concern; every field says what it means. Places (cache, output) are no part of a recipe,
because they do not change the result. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from backbones import reading
from probe.errors import UserError, nearest
from probe.methods import grammar
from probe.recipe.section import Section
from probe.recipe.train_settings import TrainConfig


class BackboneConfig(Section):
    name: str = (
        "effnet-lite0"  # a registered name, or timm:<name>, open_clip:<model>/<tag>, hf:<id or folder>
    )
    weights: str | None = None  # a local file or folder instead of the registered weights
    tap: str | None = (
        None  # where features are taken, e.g. CLIP's "projected" or "pooled"; None: the row's own
    )
    image_size: int | None = Field(None, gt=0, le=4096)  # input pixels; None: the row's own


class DataConfig(Section):
    name: str = "digits"  # a registered name, a hub id, an image folder or a folder of parquet files
    root: str | None = None  # a local copy of a registered data set
    revision: str | None = None  # the hub revision
    imbalance: float | None = Field(None, ge=1)  # make it long-tailed: largest class / smallest class
    profile: Literal["exp", "step"] = "exp"  # how a long tail falls
    val_fraction: float = Field(0.2, gt=0, lt=1)  # cut from train where there is no official validation split
    skip_bad_images: bool = False  # leave out images that cannot be read, and count them


class FeaturesConfig(Section):
    dtype: Literal["float32", "float16"] = "float32"  # of the cache; float16 halves it
    scaling: Literal["auto", "none", "standard", "l2"] = "auto"  # before the head; auto: as the backbone asks
    batch_size: int | None = Field(None, gt=0)  # None: chosen by the model's input size
    workers: int | None = Field(None, ge=0)  # decoding processes; None: by the number of cores


class MethodConfig(Section):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "erm"  # see `probe methods`; every other key is a parameter of the method

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        return grammar.understood(value)

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def spelled(self) -> str:
        """`drw(ldam, after=0.7)`: the name, the loss inside and the parameters that were given."""
        return grammar.spelled(self.model_dump())

    @property
    def names(self) -> str:
        """`drw(ldam)`."""
        return grammar.names(self.model_dump())


class SolverConfig(Section):
    name: Literal["lbfgs", "ridge", "knn", "zeroshot", "sgd"] = "lbfgs"
    l2: float | None = Field(None, gt=0)  # strength of the penalty; None: chosen on validation
    grid: Literal["coarse", "full"] = "coarse"  # coarse to fine, or all 96 values
    tol: float = Field(1e-7, ge=0, lt=1)  # lbfgs: certified relative excess of the objective
    k: int = Field(20, gt=0)  # neighbours of k-NN
    weighted: bool = True  # k-NN: votes weighted by exp(similarity / 0.07), or plain


WORD = 50  # characters of a name that a folder's name keeps; a file system takes 255 in all
DEEPEST = 16  # levels of a recipe
LOSSLESS = ("ridge", "knn", "zeroshot")  # solvers that minimise no loss of a method
RANKINGS = ("crossfit", "paper")  # by erm's held-out accuracy on train; by its accuracy on the test images


class Reference(Section):
    reference: str  # a run folder: thirds of the classes by its test accuracy


def group_source(value: Any) -> str | Reference:
    """What groups the classes: a word of RANKINGS, a JSON file that names the groups, or a run.

    A bare path is a file when it ends in .json (and is no result.json), else the folder of a run.
    """
    if isinstance(value, Reference):
        return value
    if isinstance(value, dict) and set(value) == {"reference"} and isinstance(value["reference"], str):
        return Reference(reference=value["reference"])
    if not isinstance(value, str):
        raise UserError("recipe: groups: write crossfit, paper, a JSON file, or {reference: RUN FOLDER}")
    path = Path(value)
    if value in RANKINGS or (path.suffix == ".json" and path.name != "result.json"):
        return value
    if "/" not in value:
        raise UserError(
            f'recipe: groups: "{value}" is no ranking{nearest(value, RANKINGS)}; a run is named with its path'
        )
    return Reference(reference=value)


class Recipe(Section):
    backbone: BackboneConfig = BackboneConfig()
    data: DataConfig = DataConfig()
    features: FeaturesConfig = FeaturesConfig()
    method: MethodConfig = MethodConfig()  # default: mr2 where a probe's solver minimises a loss, else erm
    solver: SolverConfig = SolverConfig()
    finetune: bool = False  # train the backbone too, instead of solving for a head on its features
    train: TrainConfig = TrainConfig()  # of solver sgd, and of fine-tuning
    groups: str | Reference = "crossfit"  # easy, medium, hard, or a file's own groups; see `group_source`
    seeds: int = Field(1, gt=0, le=1000)  # validation cuts and initialisations, numbered from 0
    # The erm of "vs erm": trained with the same settings, or the exact probe of the frozen backbone; auto:
    # the probe, except for nets from scratch (`probe.runs.reference`).
    versus: Literal["auto", "same", "probe"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _headline_method(cls, value: Any) -> Any:
        method = value.get("method") if isinstance(value, dict) else ""
        if method is None or (isinstance(method, dict) and method.get("name") is None):
            solver = value.get("solver", {})
            name = solver.get("name", "lbfgs") if isinstance(solver, dict) else solver
            # fine-tuning is plain too: MR²'s representation term depends on the scale of the features
            plain = name in LOSSLESS or value.get("finetune", False)
            # `method.lam=0.05` alone is a parameter of the method that would be run without it
            return {**value, "method": {**(method or {}), "name": "erm" if plain else "mr2"}}
        return value

    @field_validator("groups", mode="before")
    @classmethod
    def _group_source(cls, value: Any) -> str | Reference:
        return group_source(value)

    @property
    def trains(self) -> bool:
        """By gradient steps, instead of by an exact solver?"""
        return self.finetune or self.solver.name == "sgd"

    @property
    def digest(self) -> str:
        """A hash of everything that decides the result."""
        content = self.model_dump()
        if self.versus == "auto":  # runs from before it could be chosen keep their names
            del content["versus"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def slug(self) -> str:
        """`clip-rn50-pets-mr2-1a2b3c4d`: readable, and unique to the recipe."""
        words = [self.backbone.name, Path(self.data.name).name, self.method.names]
        if self.finetune or self.solver.name != "lbfgs":
            words.append("finetune" if self.finetune else self.solver.name)
        safe = [re.sub(r"[^A-Za-z0-9.]+", "-", w)[:WORD].strip("-.") for w in words]
        return "-".join([*safe, self.digest[:8]])

    @property
    def label(self) -> str:
        """What the run's own predictions are called: `mr2`, or `erm-knn` when the solver is what differs."""
        how = "finetune" if self.finetune else self.solver.name
        return self.method.spelled if how == "lbfgs" else f"{self.method.spelled}-{how}"

    @property
    def plain(self) -> Recipe:
        """The same settings under `erm`."""
        return self.model_copy(update={"method": MethodConfig(name="erm"), "versus": "auto"})

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases: nested ones can stand for more values than any machine can hold."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise UserError(
                f"recipe: line {self.peek_event().start_mark.line + 1}: YAML aliases are not allowed"
            )
        return super().compose_node(parent, index)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a piece of YAML; anything unreadable is one clear line."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise UserError(f"{where}:{line} not valid YAML: {problem}") from error


def read(path: Path) -> dict[str, Any]:
    """The raw content of a recipe file."""
    try:
        text = reading.content(path, limit=reading.RECIPE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read recipe {path}: {reason}; check the path and the file") from error
    content = parse_yaml(text, str(path)) or {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values, not a {type(content).__name__}")
    return content


def override(content: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`["seeds=5", "method.lam=0.05"]` laid over a recipe's content."""
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign or not key:
            raise UserError(f'"{setting}" is no override; write key=value, e.g. seeds=5 or method.lam=0.05')
        place(content, key, parse_yaml(value, setting))
    return content


def place(content: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `content["a"]["b"] = value` for "a.b"; a bare word on the way becomes {"name": word}."""
    if dotted == "method.name" and isinstance(value, str) and "(" in value:
        dotted = "method"  # a whole method, `drw(ldam)`, instead of whatever stood there
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = content.get(parent)
        if isinstance(inner, str) and parent in ("method", "loss"):
            inner = grammar.parse(inner)
        content[parent] = inner if isinstance(inner, dict) else {} if inner is None else {"name": inner}
        content = content[parent]
    content[last] = value


def build(content: dict[str, Any]) -> Recipe:
    """The validated recipe; the first mistake is reported as one line."""
    _check_plain(content)
    try:
        built = Recipe.model_validate(content)
    except ValidationError as error:
        raise UserError(_explain(error)) from error
    _check_plain(built.model_dump())  # a word like "inf" has become a number
    return built


# What is wrong with a value, by its type; everything else that YAML can write is refused.
PROBLEMS: dict[type, Callable[[Any], str]] = {
    str: lambda v: "holds a character that no file can" if _unwritable(v) else "",
    int: lambda v: "is too large" if abs(v) >= 1 << 63 else "",
    float: lambda v: "" if math.isfinite(v) else "is no finite number",
    bool: lambda v: "",
    type(None): lambda v: "",
}


def _check_plain(value: Any, path: tuple[str, ...] = ()) -> None:
    """Only what a result can carry and a file can hold: no dates, sets or NaN, no half characters."""
    where = ".".join(path)
    if len(path) > DEEPEST:
        raise UserError(f"recipe: {where[:80]} is nested too deeply; a recipe has sections, keys and values")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"recipe: the key {_shown(key)} is not text; put it in quotes")
            _check_plain(key, path)
            _check_plain(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_plain(inner, (*path, "-"))
    else:
        other = f"is a {type(value).__name__}, which a recipe cannot hold; put text in quotes"
        problem = PROBLEMS.get(type(value), lambda _: other)(value)
        if problem:
            raise UserError(f"recipe: {where}: {_shown(value)} {problem}")


def _unwritable(text: str) -> bool:
    return "\0" in text or any("\ud800" <= c <= "\udfff" for c in text)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:  # longer ones cannot even be printed
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *parents, key = [str(part) for part in first["loc"]]
        section: type[BaseModel] = Recipe
        for parent in parents:
            section = section.model_fields[parent].annotation  # type: ignore[assignment]
        return f'recipe: unknown key "{path}"' + nearest(key, section.model_fields)
    return f"recipe: {path}: {first['msg']} (given {_shown(first['input'])})"
