"""Look at these first, for a run: its images and hard classes, and for CLIP its zero-shot accuracy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones import catalogue, reading
from probe.core.threads import free_threads
from probe.errors import UserError
from probe.evaluation import groups
from probe.evaluation.diagnostics import look_first, outputs
from probe.evaluation.diagnostics.look_first import NamedImages
from probe.evaluation.groups import Ranking
from probe.features.views import CENTER
from probe.heads.fitted import FittedHead
from probe.probing.zero_shot import text_classifier
from probe.runs.experiment import Experiment
from probe.system.atomic import write_atomic
from probe.system.cache_dir import cache_root, check_owner
from probe.system.sealed_json import canonical, digest, sealed, unsealed

WITH_TEXT = "clip"  # the family of backbones whose features may share a space with text
PROMPTS = 2_000  # at most, where the data set has more templates than that: a forecast needs no more
FOLDER = "zero-shot"  # in the cache: K numbers for each data set and backbone


@free_threads()
def block(e: Experiment, ranking: Ranking, cache: Path | None) -> dict[str, Any] | None:
    """The `look_first` block; None for a network from scratch, which has no frozen features."""
    said = ranking.crossfitted
    if said is None:
        return None
    splits = [f.name for f in e.inputs.training for _ in f.ids]
    test, names = e.test, e.problem.class_names
    hard = groups.thirds(np.nan_to_num(said.accuracy), said.confidence)["hard"]
    return look_first.look_first(
        said,
        NamedImages(e.problem.crops, e.problem.labels, e.inputs.training_ids, splits),
        NamedImages(e.problem.head_scaling.lazily(test.X), test.y, test.ids, [test.name] * len(test.y)),
        names,
        hard,
        zero_shot=zero_shot_accuracy(e, cache),
    )


def zero_shot_accuracy(e: Experiment, cache: Path | None) -> NDArray[np.float64] | None:
    """K: of the class names' text embeddings on the training images; None without a text encoder.

    Remembered in the cache, so that a run whose features are there need not load the network for it.
    """
    b, data = e.inputs.backbone, e.inputs.data
    alone = len(e.inputs.backbones) == 1 and b.tap == "projected"
    if not alone or catalogue.find(e.recipe.backbone.name).family != WITH_TEXT:
        return None
    templates = data.templates[: max(1, PROMPTS // len(data.class_names))]
    about = {"features": e.problem.key, "classes": list(data.names_in_prompts), "templates": list(templates)}
    place = cache_root(cache) / FOLDER / f"{digest(canonical(about))[:32]}.json"
    with suppress(UserError, OSError, ValueError, LookupError, TypeError):  # unknown, damaged, another user's
        check_owner(place)
        known = unsealed(reading.text(place))["accuracy"]
        return np.array([np.nan if v is None else float(v) for v in known])
    try:
        embeddings, scale = text_classifier(b, data.names_in_prompts, templates)
    except UserError:  # such as a tokenizer that is out of reach: a forecast is no reason to fail a run
        return None
    head = FittedHead("cosine", {"weight": embeddings}, {"scale": scale})
    right = head.scores(e.inputs.stack((CENTER,))).argmax(dim=1).numpy() == e.inputs.y
    accuracy = outputs.class_mean(right, e.inputs.y, len(data.class_names))
    with suppress(OSError, UserError):  # a cache that cannot be written only costs time
        write_atomic(place, sealed({"accuracy": [None if np.isnan(v) else float(v) for v in accuracy]}))
    return accuracy
