"""Without network, one line names all that is missing, data and weights, and the commands that go on."""

from __future__ import annotations

import pytest

from backbones import hub
from probe.errors import UserError
from probe.recipe import build
from probe.runs.inputs import gather


def refused(tmp_path, monkeypatch, **recipe):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError) as told:
        gather(build(recipe), cache=tmp_path / "cache")
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("asked", [True, False])
def test_the_headline_command_names_data_and_weights_and_both_ways_out(tmp_path, monkeypatch, asked):
    if asked:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read once, at its import
        monkeypatch.setattr(hub, "reachable", lambda url, seconds=0: False)
    told = refused(tmp_path, monkeypatch, backbone={"name": "clip-rn50"}, data={"name": "food101"})
    assert "(1) the data set ethz/food101" in told
    assert "(2) the hub's cache lacks open_clip_model.safetensors" in told
    assert ("HF_HUB_OFFLINE is set" if asked else "cannot reach https://") in told
    assert "`probe run --backbone clip-rn50 --data food101 --weights FILE --root FOLDER`" in told
    assert '`make probe BACKBONE=clip-rn50 DATA=food101 ARGS="--weights FILE --root FOLDER"`' in told


@pytest.mark.parametrize(
    ("recipe", "commands"),
    [
        (
            {"backbone": {"name": "clip-rn50"}, "data": {"name": "digits"}},
            "`probe run --backbone clip-rn50 --data digits --weights FILE`, "
            'or `make probe BACKBONE=clip-rn50 DATA=digits ARGS="--weights FILE"`',
        ),
        (
            {"backbone": {"name": "effnet-lite0"}, "data": {"name": "some/thing"}, "finetune": True},
            "`probe run --backbone effnet-lite0 --data FOLDER --finetune`, "
            "or `make finetune BACKBONE=effnet-lite0 DATA=FOLDER`",
        ),
    ],
)
def test_only_what_is_missing_gets_a_place_in_the_command(tmp_path, monkeypatch, recipe, commands):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refused(tmp_path, monkeypatch, **recipe).endswith(f"With local copies: {commands}")
