"""A run in FiftyOne: every image with its label and what was predicted, and tags for what to look at first.

    python examples/in_fiftyone.py runs/effnet-lite0-pets-mr2-1a2b3c4d           (pip install fiftyone)

Training images have the predictions of probes that have not seen them (`crossfit.parquet`), test images
those of the run's method and first seed (`predictions.parquet`). Tags: train or test; hard, for the hard
third of the classes; wrong; suspect, for a training image that is firmly taken for another class.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fiftyone as fo
import pyarrow.parquet as pq

import probe

FIRMLY = 0.9  # probability of the other class

Row = tuple[str, str, str, float]  # id, label, prediction, its probability


def held_out(run: Path) -> Iterator[Row]:
    """Training images."""
    for row in pq.read_table(run / "crossfit.parquet").to_pylist():
        wrong = row["predicted"] != row["label"]
        yield row["id"], row["label"], row["predicted"], row["rival_probability" if wrong else "probability"]


def tested(run: Path, method: str, names: tuple[str, ...]) -> Iterator[Row]:
    """Test images; classes are numbers here."""
    for row in pq.read_table(run / "predictions.parquet").to_pylist():
        if row["method"] == method and row["seed"] == 0:
            yield row["id"], names[row["label"]], names[row["prediction"]], row["probability"]


def picture(split: probe.data.Split, number: int, folder: Path) -> str:
    """FiftyOne shows files, and images may come from tables: each is written once."""
    file = folder / f"{split.name}-{number}.png"
    if not file.exists():
        split[number][0].save(file)
    return str(file.resolve())


def dataset(run: Path, folder: Path) -> fo.Dataset:
    """A FiftyOne data set named after the run; one of an earlier call is replaced."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    settings = result["recipe"]["data"]
    data = probe.data.load(settings["name"], root=settings["root"])
    hard = set(result["test"]["groups"].get("hard", {}).get("classes", ()))
    rows = {"train": held_out(run), "test": tested(run, result["method"], data.class_names)}
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for name, predictions in rows.items():
        place = {sample: number for number, sample in enumerate(data[name].ids)}
        for sample, label, predicted, probability in predictions:
            if sample not in place:  # of an official validation split, on which the head was fitted too
                continue
            wrong = predicted != label
            suspect = name == "train" and wrong and probability >= FIRMLY
            said = {"hard": label in hard, "wrong": wrong, "suspect": suspect}
            samples.append(
                fo.Sample(
                    filepath=picture(data[name], place[sample], folder),
                    tags=[name, *(tag for tag, holds in said.items() if holds)],
                    ground_truth=fo.Classification(label=label),
                    prediction=fo.Classification(label=predicted, confidence=probability),
                    image_id=sample,
                )
            )
    made = fo.Dataset(run.name, overwrite=True, persistent=True)
    made.add_samples(samples)
    return made


if __name__ == "__main__":
    run = Path(sys.argv[1])
    made = dataset(run, Path("fiftyone-images", run.name))
    print(f"{made.name}: {len(made):,} images, {made.count_sample_tags()}")
    print("suspect:", *made.match_tags("suspect").limit(5).values("image_id"))
    print(f'look at it: fiftyone app launch "{made.name}"')
