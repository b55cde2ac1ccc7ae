"""What a lever costs, in seconds, before it is tried: extraction is timed on a few images, the rest
follows from that.

The figures decide what fits into the time that is left; a limit ends what takes longer than they say.
"""

from __future__ import annotations

import tempfile
import time

import numpy as np

from probe import features
from probe.recipe import PartConfig, Recipe
from probe.runs import selecting
from probe.runs.inputs import backbone_from_cache, load_backbone, views_needed
from probe.runs.judgement import FOLDS, TrainingImages

SAMPLE = 48  # images that extraction is timed on, after as many that warm it up
BACKWARD = 4.0  # an image in training / an image in extraction
SEARCHING = 1.5  # a training with its search for the rate / without
EPOCHS = 5  # of a fine-tuning, where the recipe leaves them open
ROWS = 5_000.0  # of a training on features, in a second
HEAD_EPOCHS = 60
WIDER = 1.6  # solving with p parts takes p to this power as long: 1, 3 and 6 times on pets
SLOWER = {"dro": 6.0}  # a head of a method / a plain one: class weights are settled for every l2


class Costs:
    """Seconds by recipe; what has been timed is remembered."""

    def __init__(self, images: TrainingImages) -> None:
        self.images = images
        self._seconds: dict[str, float] = {}  # by part, for one image

    def extraction(self, recipe: Recipe) -> float:
        """Of the features of training images that are not in the cache."""
        missing = ((part, self._missing(recipe, part)) for part in recipe.backbone.parts)
        return sum(number * self.per_image(recipe, part) for part, number in missing if number)

    def testing(self, recipe: Recipe) -> float:
        """Of the features of test images: those of the plain probe, and those of this recipe."""
        plain = self.images.plain
        parts = {part.model_dump_json(): (r, part) for r in (plain, recipe) for part in r.backbone.parts}
        rows = self.images.test_images
        return sum(
            rows * len(views_needed(r, "test")) * self.per_image(r, part) for r, part in parts.values()
        )

    def judging(self, recipe: Recipe, plain: float) -> float:
        """Of the judgement of a recipe, where that of the plain probe took `plain`, features aside."""
        if recipe.finetune:
            epochs = (recipe.train.epochs or EPOCHS) * SEARCHING * BACKWARD
            per_image = self.per_image(recipe, recipe.backbone.parts[0])
            return len(self.images.fold) * epochs * per_image
        trainings = FOLDS if recipe.trains else 1
        return self.extraction(recipe) + trainings * self.solving(recipe, plain)

    def solving(self, recipe: Recipe, plain: float) -> float:
        """Of the heads of a recipe, features aside: of all folds, but of a training once."""
        if recipe.finetune:
            return self.judging(recipe, plain)
        if recipe.trains:
            return HEAD_EPOCHS * len(self.images.fold) / ROWS
        values = len(selecting.points(recipe))  # each after the first starts from the one before
        views = len(views_needed(recipe, "train"))
        heads = SLOWER.get(recipe.method.name, 1.0) * (1 + values) / 2
        return plain * len(recipe.backbone.parts) ** WIDER * views * heads

    def per_image(self, recipe: Recipe, part: PartConfig) -> float:
        """Seconds to extract one view of one image, timed on a few training images."""
        key = part.model_dump_json()
        if key not in self._seconds:
            backbone, split = load_backbone(recipe, part, self.images.cache), self.images.data["train"]
            rows = np.linspace(0, len(split) - 1, min(SAMPLE, len(split))).astype(np.int64)
            few = split.subset(np.unique(rows), "a few")
            with tempfile.TemporaryDirectory(prefix="probe-") as folder:
                for attempt in ("warm", "timed"):
                    begin = time.perf_counter()
                    features.extract(
                        backbone,
                        few,
                        cache=f"{folder}/{attempt}",
                        precision=recipe.features.precision,
                        skip_bad_images=recipe.data.skip_bad_images,
                        progress=False,
                    )
                    self._seconds[key] = (time.perf_counter() - begin) / len(few)
        return self._seconds[key]

    def _missing(self, recipe: Recipe, part: PartConfig) -> int:
        """Views of training images that this part's features are to be computed for."""
        images = self.images
        identity = backbone_from_cache(recipe, part, images.cache)
        missing = 0
        for name in images.data.splits:
            for view in views_needed(recipe, name):
                found = identity is not None and features.find(
                    identity,
                    images.data[name],
                    cache=images.cache,
                    dtype=recipe.features.dtype,
                    precision=recipe.features.precision,
                    skip_bad_images=recipe.data.skip_bad_images,
                    view=view,
                )
                missing += 0 if found else len(images.data[name])
        return missing
