"""Printed characters: other typefaces in test than in train, and the same pixels every time."""

import numpy as np

from probe.data.sources import letters


def test_test_images_are_of_other_families():
    family = {split: {face.partition("_")[0] for face in faces} for split, faces in letters.FACES.items()}
    assert not family["train"] & family["test"]


def test_letters_are_drawn_the_same_every_time():
    first, again = letters.read(), letters.read()
    assert len(letters.CLASS_NAMES) == 62
    for split, number in (("train", 28), ("test", 24)):
        assert (np.bincount(first[split].labels, minlength=62) == number).all()
        assert first[split].fingerprint == again[split].fingerprint
        assert len(set(first[split].ids)) == len(first[split].ids)
    assert first["test"].class_names[letters.CHARACTERS.index("l")] == "small l"


def test_capitals_are_larger_than_small_letters():
    train = letters.read()["train"]
    ink = {
        c: np.mean([np.ptp(np.flatnonzero(_dark(train[row][0]).any(1))) for row in _rows(train, c)])
        for c in "Cc"
    }
    assert ink["C"] > 1.2 * ink["c"]


def _rows(split, character):
    return np.flatnonzero(split.labels == letters.CHARACTERS.index(character))


def _dark(image):
    grey = np.asarray(image.convert("L")).astype(int)
    return grey < grey.max() - 60
