"""Numbers that are none: stopped at once, with the step, the samples and what to try; nothing bad is kept."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from probe import features
from probe.train.loop import Training
from tests.support import feature_world as pictures
from tests.support import training_world as blobs
from tests.torture.children import Child
from tests.torture.kinds import Case, Torture, complaint
from tests.torture.tiny import World, hasten

TOO_LARGE = (7e4, "float16")
BAD = (float("nan"), float("inf"), -float("inf"))


class Poison(nn.Module):
    """Gives one value for some pictures, and 1 for the others."""

    def __init__(self, value: float, share: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.double().sum((1, 2, 3)).abs() * 1e4) % 1 < self.share
        return torch.where(chosen[:, None], self.value, torch.tensor(1.0)).expand(len(x), 32)


def extraction(folder: Path) -> Case:
    def case(luck: Random) -> None:
        cache = folder / f"{luck.getrandbits(32):08x}"
        value, dtype = luck.choice([*((bad, luck.choice(("float32", "float16"))) for bad in BAD), TOO_LARGE])
        backbone = pictures.backbone(encoder=Poison(value, luck.choice((0.1, 0.5, 1.0))))
        options = {"dtype": dtype, "shard_rows": 8, "batch_size": 8, "workers": 1, "progress": False}
        found: list[features.FeatureSet] = []
        said = complaint(
            lambda: found.append(features.extract(backbone, pictures.split(40), cache=cache, **options))
        )
        if said is not None:
            assert re.search(r'"\d{4}\.png"', said), f"no sample is named: {said}"
            assert re.search("check the weights|store float32", said), f"no way out: {said}"
            assert not cache.exists() or not list(cache.iterdir()), "something bad was kept"
        else:  # by chance no picture is poisoned
            assert bool(found[0].X.tensor().isfinite().all()), "bad features were handed out"
        shutil.rmtree(cache, ignore_errors=True)

    return case


def _spoilt(luck: Random, place: Path) -> Training:
    """A training that has reason to go wrong: too fast, or with a row that is not finite."""
    reason = luck.choice(("rate", "row", "last row", "half"))
    rate = 10.0 ** luck.uniform(5, 38) if reason == "rate" else 0.1
    training = blobs.feature_training(
        luck.choice(("erm", "mr2", "la")),
        folder=place,
        epochs=2,
        lr=rate,
        clip=luck.choice((None, 1.0)),
        optimizer=luck.choice(("sgd", "adamw")),
        checkpoint_minutes=luck.choice((1e-9, 60.0)),
        precision="bf16" if reason == "half" else "fp32",
        ema=luck.choice((None, 0.9)),
    )
    X = training.task.train.X
    if reason in ("row", "half"):
        X[luck.randrange(len(X))] = luck.choice((*BAD, 3e38, 1e30))
    if reason == "last row":  # of the last step, after which no loss is looked at
        sampler = training.make_sampler()
        X[int(sampler.epoch(1)[-1][0])] = luck.choice((*BAD, 3e38))
    return training


def training(folder: Path) -> Case:
    def case(luck: Random) -> None:
        place = folder / f"{luck.getrandbits(32):08x}"
        spoilt = _spoilt(luck, place)
        said = complaint(spoilt.run)
        if said is not None:
            assert re.search(r"step \d+", said), f"no step: {said}"
            assert re.search(r"blob-\d+", said), f"no sample: {said}"
            assert "Try" in said, f"no way out: {said}"
        else:
            finite = all(bool(t.isfinite().all()) for t in blobs.weights(spoilt).values())
            assert finite, "it ended well with weights that are no numbers"
        for path in place.rglob("*.safetensors"):
            bad = [name for name, t in load_file(path).items() if not bool(t.isfinite().all())]
            assert not bad, f"{bad[0]} was saved and is not finite"
        shutil.rmtree(place, ignore_errors=True)

    return case


def command(folder: Path) -> Case:
    world = World.make(folder / "world")

    def case(luck: Random) -> None:
        place, way = folder / f"{luck.getrandbits(32):08x}", luck.choice(("sgd", "finetune"))
        rate, steps = 10.0 ** luck.uniform(4, 38), luck.choice((8, 1000))
        recipe = world.recipe_file(
            way, train={"lr": rate, "epochs": luck.choice((1, 2)), "batch_size": steps}
        )
        words = ["run", str(recipe), "--cache", str(folder / "cache"), "--out", str(place / "runs")]
        environment = {"PROBE_CACHE": str(folder / "cache")}
        child = Child(words, place / "said", before=hasten, environment=environment)
        code = child.ended()
        assert "Traceback" not in child.err, f"a traceback: {child.err.strip().splitlines()[-1]}"
        visible = list(place.glob("runs/[!.]*"))
        if code == 2:
            clear = (
                r"error: .*(step \d+.*train/|not finite.*nothing was written|worse.*nothing was saved).*Try"
            )
            assert re.search(clear, child.err), f"not clear: {child.err}"
            assert not visible, "a run was written"
        else:
            assert code == 0, f"exit code {code}"
            json.loads((visible[0] / "result.json").read_text(), parse_constant=_refuse)
        for path in place.rglob("*.safetensors"):
            assert all(bool(t.float().isfinite().all()) for t in load_file(path).values()), (
                f"{path.name} is bad"
            )
        shutil.rmtree(place)

    return case


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} in a result")


PROMISE = "stopped at once with the step, the samples and what to try; nothing bad is kept"
ROWS = [
    Torture("numbers: features", PROMISE, extraction, quick=10, share=0.5),
    Torture("numbers: training", PROMISE, training, quick=12),
    Torture("numbers: command", PROMISE, command, quick=0),
]
