"""Zero-shot prompts for ImageNet are CLIP's own: 80 templates, 1,000 names, in ImageNet's order."""

import dataclasses

import probe.data
from probe.data import catalogue, imagenet_prompts
from tests.support.tiny_datasets import write_folder

WORDNET_IDS = [f"n{k:08d}" for k in range(1000)]


def test_there_are_80_templates_and_1000_names_in_the_order_of_wordnet_ids():
    names, templates = imagenet_prompts.read(WORDNET_IDS)
    assert (len(names), len(set(templates))) == (1000, 80)
    assert all(template.count("{}") == 1 for template in templates)
    assert "itap of a {}." in templates
    # places that every list of ImageNet's classes agrees on
    known = {
        0: "tench",
        1: "goldfish",
        207: "Golden Retriever",
        281: "tabby cat",
        817: "sports car",
        985: "daisy",
    }
    assert {k: names[k] for k in known} == known
    assert names[134] == "crane bird"  # CLIP's words tell the two apart
    assert names[517] == "construction crane"


def test_names_in_another_order_are_not_renamed():
    assert imagenet_prompts.read(WORDNET_IDS[::-1])[0] == tuple(WORDNET_IDS[::-1])
    assert imagenet_prompts.read(["cat", "dog"])[0] == ("cat", "dog")
    hub = ["tench, Tinca tinca", *["x"] * 998, "toilet tissue, toilet paper, bathroom tissue"]
    assert imagenet_prompts.read(hub)[0][0] == "tench"


def test_imagenet_asks_for_them_and_class_names_stay(tmp_path, monkeypatch):
    for name in ("imagenet", "imagenet-lt"):
        assert catalogue.find(name).imagenet_prompts
    row = dataclasses.replace(catalogue.find("imagenet"), classes=2, sizes={"train": 6, "test": 6})
    monkeypatch.setitem(catalogue._by_name, "imagenet", row)
    data = probe.data.load("imagenet", root=write_folder(tmp_path, splits=("train", "validation")))
    assert data.class_names == data.names_in_prompts == ("cat", "dog")
    assert len(data.templates) == 80
    assert probe.data.load("digits").names_in_prompts == probe.data.load("digits").class_names
