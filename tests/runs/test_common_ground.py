"""What runs of a comparison have in common is made once, and changes no bit of any of them."""

import json

import numpy as np
import pytest

from probe import recipe
from probe.runs import common_ground
from probe.runs.common_ground import LastGround
from probe.runs.inputs import gather
from probe.runs.run import run
from probe.runs.strategy import choose
from tests.support.painted_images import COLOURS, paint

SMALL = {"name": "effnet-lite0", "image_size": 32}
SGD = {"solver": {"name": "sgd", "l2": 1.0}, "train": {"epochs": 2, "batch_size": 16}}
RANGES = ("mr2(power=[0.3, 1])", "la(tau=[0.5, 1])", "mr2(power=[0.3, 1], lam=0.2)", "ef(tau=[0.5, 1])")
NOT_COMPARED = {"timing", "generated", "created", "command", "environment"}


def built(data, method, **more):
    return recipe.build({"backbone": SMALL, "data": str(data), "method": method, **more})


@pytest.fixture
def laid(monkeypatch):
    """The recipes whose ground has been laid."""
    found, lay = [], common_ground.lay
    monkeypatch.setattr(common_ground, "lay", lambda s, inputs: found.append(s.recipe) or lay(s, inputs))
    return found


def what(folder):
    """All that a run has found, without when and how fast."""
    result = json.loads((folder / "result.json").read_text())
    files = ("head.safetensors", "predictions.parquet", "crossfit.parquet")
    found = {name: (folder / name).read_bytes() for name in files if (folder / name).exists()}
    return {**found, **{key: value for key, value in result.items() if key not in NOT_COMPARED}}


@pytest.mark.parametrize(
    ("methods", "settings"),
    [
        (("mr2", "erm", "dro"), {}),
        ((RANGES[0], "erm", *RANGES[1:], "dro"), {"select": "budget"}),
        (("erm", *RANGES[:2]), {"select": "overall", "data": {"shots": 6}, "seeds": 2}),
        (RANGES[:3], {"select": "hard", "solver": {"l2": 1.0}}),
        (("mr2", "erm"), SGD),
    ],
    ids=["one holdout", "budget", "draws", "given l2", "sgd"],
)
def test_a_run_has_the_same_bits_by_itself_and_after_others(
    colours, cache, tmp_path, laid, methods, settings
):
    data = {"name": str(colours), **settings.get("data", {})}
    recipes = [recipe.build({"backbone": SMALL, "method": m, **settings, "data": data}) for m in methods]
    alone = {r.digest: what(run(r, cache=cache, out=tmp_path / "alone").folder) for r in recipes}
    assert len(laid) == len(recipes)
    last = LastGround()
    for r in recipes:
        assert what(run(r, cache=cache, out=tmp_path / "shared", last=last).folder) == alone[r.digest]


@pytest.fixture
def grounds(colours, cache, monkeypatch):
    """How many grounds runs of these recipes, one after the other, stand on."""
    laid = []
    monkeypatch.setattr(common_ground, "lay", lambda strategy, inputs: laid.append(strategy) or object())

    def count(*recipes):
        last = LastGround()
        for r in recipes:
            last.of(choose(r), [gather(r, cache=cache)])
        return len(laid)

    return count


def test_methods_share_what_is_not_theirs(colours, grounds):
    assert grounds(*(built(colours, method) for method in ("mr2", "erm", "la", "cb", "dro"))) == 1


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("mr2", {"seeds": 2}),
        ("mr2", {"solver": {"l2": 3.0}}),
        ("mr2", {"select": "hard"}),
        ("mr2(power=[0.3, 1])", {}),  # its plain probe is chosen like itself, on folds
        ("mr2", {"features": {"scaling": "standard"}}),
        ("mr2", {"backbone": {**SMALL, "image_size": 40}}),
        ("mr2", SGD),
    ],
)
def test_other_settings_have_a_ground_of_their_own(colours, grounds, method, change):
    assert grounds(built(colours, "erm"), built(colours, method, **change)) == 2


@pytest.mark.parametrize("split", ["train", "test"])
def test_other_images_in_the_same_place_have_a_ground_of_their_own(cache, tmp_path, laid, split):
    rng, data, last = np.random.default_rng(0), tmp_path / "data", LastGround()
    for part in ("train", "test"):
        for name, colour in COLOURS.items():
            paint(data / part / name, colour, 8, rng)
    erm, mr2 = built(data, "erm"), built(data, "mr2")
    run(erm, cache=cache, out=tmp_path, last=last)
    next((data / split).rglob("*.png")).unlink()
    shared = run(mr2, cache=cache, out=tmp_path, last=last)
    assert len(laid) == 2
    assert what(shared.folder) == what(run(mr2, cache=cache, out=tmp_path / "alone").folder)
