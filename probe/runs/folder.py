"""The folder of a run: the name of every file in it, and how each is read, written and checked.

A folder appears whole or not at all, and `SHA256SUMS` says what its files were when they were written. What
another room writes by itself (a head, predictions, tuned weights) keeps its file name there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from probe.errors import UserError
from probe.recipe import RESULT
from probe.report.html import thumbnails
from probe.system import checksums
from probe.system.atomic import staged_folder, write_atomic
from probe.system.cache_dir import OTHER_RUN, check_owner
from probe.train.log import FILE as LOG

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from probe.evaluation.crossfitted import Crossfitted
    from probe.evaluation.predictions import Predictions
    from probe.evaluation.track_record import TrackRecord
    from probe.features import FeatureSet
    from probe.heads.fitted import FittedHead
    from probe.recipe import Recipe

RECIPE = "recipe.yaml"
PAGE = "report.html"
PLOTS = "plots"
SEED = "seed-"  # and a number: the folder of a further seed's head
REDRAWN = {PAGE, thumbnails.FILE}  # by `probe report`, so their bytes may change


def read_result(source: Path) -> dict[str, Any]:
    """The result of a run folder, or of a result file by itself; what is missing or damaged is named."""
    path = source / RESULT if source.is_dir() else source
    try:
        content = json.loads(checksums.read(path))
    except FileNotFoundError as error:
        raise UserError(
            f"{source} is not a run: it has no {RESULT}; name a folder that `probe run` wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}; run it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), dict):
        raise UserError(f"{path}: holds no result of a run")
    return content


@contextmanager
def understood(*sources: Path) -> Iterator[None]:
    """Inside: a result that lacks something, or holds something else in its place, is refused in one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        named = " or ".join(map(str, sources))
        raise UserError(
            f"{named} holds no whole result of this version ({type(error).__name__}: {error}); run it again"
        ) from error


@dataclass(frozen=True)
class RunFolder:
    """A run folder at `path`, whether it is there yet or not."""

    path: Path

    @classmethod
    def of(cls, recipe: Recipe, out: Path) -> RunFolder:
        """The folder of this recipe's run in `out`."""
        from probe.runs.naming import slug

        return cls(out / slug(recipe))

    @property
    def name(self) -> str:
        """What other runs and tables call this one."""
        return self.path.name

    @property
    def work(self) -> Path:
        """Beside it, where trainings keep their checkpoints until the run is written."""
        return self.path.with_name(f".{self.path.name}")

    def check_owner(self) -> None:
        """Refuse a folder, or a work folder, that another user wrote."""
        check_owner(self.path, self.work, way_out=OTHER_RUN)

    def result(self) -> dict[str, Any]:
        """The checked content of `result.json`."""
        return read_result(self.path)

    @property
    def has_predictions(self) -> bool:
        """Is the file of predictions there, without which nothing can be compared?"""
        return self._predictions.is_file()

    def checked_predictions(self) -> Path:
        """The file of predictions, whose bytes are those that were written."""
        if not self.has_predictions:
            name = self._predictions.name
            raise UserError(f"{self.path} has no {name}, which a comparison needs; run it again")
        checksums.check(self._predictions, reading.PREDICTIONS)
        return self._predictions

    def predictions(self, ids: Sequence[str]) -> list[Predictions]:
        """One per seed, of the run's own method; its test images must be these, in this order."""
        from probe.evaluation import predictions

        return predictions.read(self._predictions, ids)

    def track_records(self, class_names: Sequence[str]) -> list[TrackRecord] | None:
        """How far a guess of each class can be trusted; None where the predictions are not there."""
        from probe.evaluation import predictions, track_record

        if not self.has_predictions:
            return None
        return track_record.track_records(*predictions.guesses(self._predictions), class_names)

    @property
    def _predictions(self) -> Path:
        from probe.evaluation import predictions

        return self.path / predictions.FILE

    def of_seed(self, seed: int) -> RunFolder:
        """Where one seed's head, and its tuned encoder, are: the first seed's in the run folder itself."""
        return self if seed == 0 else RunFolder(self.path / f"{SEED}{seed}")

    @property
    def seeds(self) -> list[int]:
        """The seeds whose heads are here."""
        further = (path.name.removeprefix(SEED) for path in self.path.glob(f"{SEED}*"))
        return [0, *sorted(int(number) for number in further if number.isdecimal())]

    def head(self, seed: int = 0) -> tuple[FittedHead, dict[str, Any]]:
        """A seed's head, and what was said about it: classes, backbone, fingerprint."""
        from probe.heads import fitted

        if seed not in self.seeds:
            stored = ", ".join(map(str, self.seeds))
            raise UserError(f"{self.path} holds no head of seed {seed}; it has those of seeds {stored}")
        return fitted.load(self.of_seed(seed).path)

    def restore_weights(self, backbone: Backbone) -> None:
        """Give the backbone the weights that a fine-tuning left."""
        from probe.train.model import tuned_weights

        tuned_weights.restore(backbone, self.weights)

    @property
    def weights(self) -> Path:
        """The file of the encoder's weights that a fine-tuning left."""
        from probe.train.model import tuned_weights

        return self.path / tuned_weights.FILE

    def thumbnails(self) -> dict[str, str]:
        """Small pictures by image id; none when there are none."""
        return thumbnails.read(self.path)

    @contextmanager
    def replaced(self) -> Iterator[RunFolder]:
        """A staged folder to write to; it takes the place of this one, whole, when the block ends well."""
        with staged_folder(self.path) as staged:
            yield RunFolder(staged)
            files = {path.name for path in staged.iterdir() if path.is_file()}
            checksums.record(staged, files - REDRAWN)
            for seed in staged.glob(f"{SEED}*"):
                checksums.record(seed, [path.name for path in seed.iterdir()])

    def write_recipe(self, recipe: Recipe) -> None:
        """The whole recipe, defaults included: `probe run` repeats it."""
        write_atomic(self.path / RECIPE, recipe.to_yaml())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """All that was measured; NaN and infinity are refused."""
        write_atomic(self.path / RESULT, json.dumps(result, indent=2, allow_nan=False))

    def write_head(self, head: FittedHead, about: Mapping[str, Any]) -> None:
        """What `head` reads."""
        from probe.heads import fitted

        fitted.save(head, self.path, about)

    def write_predictions(self, predicted: Sequence[Predictions], test: FeatureSet) -> None:
        """The run's own method first: readers rely on it."""
        from probe.evaluation import predictions

        predictions.write(self._predictions, predicted, test.ids, test.y, test.class_names)

    def write_crossfitted(self, said: Crossfitted, ids: Sequence[str], class_names: Sequence[str]) -> None:
        """What plain probes said about each training image, which they had not seen."""
        from probe.evaluation import crossfitted

        crossfitted.write(self.path / crossfitted.FILE, said, ids, class_names)

    def write_log(self, text: str) -> None:
        """One JSON object per line."""
        write_atomic(self.path / LOG, text)

    def write_page(self, page: str) -> Path:
        """The report; returns where it is."""
        write_atomic(self.path / PAGE, page)
        return self.path / PAGE

    def write_thumbnails(self, small: Mapping[str, str]) -> None:
        """What `thumbnails` reads, so that the page can be drawn again."""
        write_atomic(self.path / thumbnails.FILE, json.dumps(small))

    def copy_file(self, file: Path) -> None:
        """Take a copy of a file, under its own name."""
        write_atomic(self.path / file.name, file.read_bytes())

    def copy_tree(self, folder: Path, name: str) -> None:
        """Take a copy of a folder, under `name`."""
        shutil.copytree(folder, self.path / name)

    def remove_work(self) -> None:
        """Drop the checkpoints: the run is written."""
        shutil.rmtree(self.work, ignore_errors=True)
