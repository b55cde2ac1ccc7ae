"""Several backbones, or taps, in one recipe: every spelling means the same."""

import pytest
import yaml

from probe import recipe
from probe.errors import UserError


def backbone(value):
    return recipe.build({"backbone": value}).backbone


def test_all_spellings_mean_the_same():
    spellings = [
        "effnet-lite0+effnet-lite1",
        ["effnet-lite0", "effnet-lite1"],
        ["effnet-lite0+effnet-lite1"],
        {"name": ["effnet-lite0", "effnet-lite1"]},
        [{"name": "effnet-lite0"}, "effnet-lite1"],
        {"name": "effnet-lite0", "also": ["effnet-lite1"]},
    ]
    found = [recipe.build({"backbone": spelling}) for spelling in spellings]
    assert len({r.digest for r in found}) == 1
    assert found[0].backbone.title == "effnet-lite0+effnet-lite1"
    assert found[0].digest != recipe.build({"backbone": "effnet-lite0"}).digest
    assert found[0].digest != recipe.build({"backbone": "effnet-lite1+effnet-lite0"}).digest


def test_taps_and_sizes():
    taps = [
        {"name": "clip-rn50", "tap": "projected+pooled"},
        {"name": "clip-rn50", "tap": ["projected", "pooled"]},
    ]
    for written in taps:
        assert [(p.name, p.tap) for p in backbone(written).parts] == [
            ("clip-rn50", "projected"),
            ("clip-rn50", "pooled"),
        ]
    assert backbone(taps[0]).title == "clip-rn50(projected)+clip-rn50(pooled)"
    assert backbone({"name": "clip-rn50", "tap": ["pooled"]}) == backbone(
        {"name": "clip-rn50", "tap": "pooled"}
    )
    both = backbone({"name": "effnet-lite0+effnet-lite1", "image_size": 96})
    assert [p.image_size for p in both.parts] == [96, 96]
    own = backbone(["effnet-lite0", {"name": "effnet-lite1", "image_size": 96}])
    assert [p.image_size for p in own.parts] == [None, 96]


def test_a_resolved_recipe_means_what_was_written():
    written = recipe.build({"backbone": "effnet-lite0+effnet-lite1", "data": "pets"})
    assert recipe.build(yaml.safe_load(written.to_yaml())) == written


@pytest.mark.parametrize("name", ["hf:./a+b", "open_clip:x/y+z", "hf:a+./b"])
def test_a_sign_inside_a_path_or_a_library_s_name_does_not_separate(name):
    assert backbone(name).name == name
    assert backbone(f"{name}+effnet-lite0").title == f"{name}+effnet-lite0"
    assert len(backbone(f"{name}+effnet-lite0").parts) == 2


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("effnet-lite0+", "has an empty name"),
        ("+", "has an empty name"),
        ("effnet-lite0+effnet-lite0", "has a part twice"),
        ([], "write a name, or a list of names"),
        (["effnet-lite0", None], "write a name, or a list of names"),
        ({"name": "a+b", "tap": ["c", "d"]}, "several taps belong to one backbone"),
        ({"name": "a+b", "weights": "w"}, "they belong to one backbone"),
        ({"name": "a", "tap": []}, "a list of names of taps"),
        ({"name": "a", "tap": ["x", 1]}, "a list of names of taps"),
        ({"name": "a", "also": "b"}, "backbone.also"),
        (["a", {"nam": "x"}], 'unknown key "backbone.also.0.nam"'),
        ("+".join("abcdefghi"), "9 parts; at most 8"),
    ],
)
def test_what_cannot_be_meant_is_one_line(value, line):
    with pytest.raises(UserError) as told:
        backbone(value)
    assert line in str(told.value)
    assert "\n" not in str(told.value)
