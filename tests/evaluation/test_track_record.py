"""What a guess is worth: how often it was right on test images, and what they were when it was not."""

import numpy as np

from probe.evaluation.track_record import track_records

NAMES = ("rose", "hibiscus", "tulip", "lily")


def test_a_guess_is_judged_by_the_images_it_was_made_for():
    #         said rose eleven times: six roses, four hibiscus, one tulip; lily never
    labels = np.array([0] * 6 + [1] * 4 + [2] + [1, 1, 2, 3])
    said = np.array([0] * 11 + [1, 1, 2, 2])
    records = track_records(labels, said, NAMES)
    assert str(records[0]) == "right 55 % of the time; often hibiscus"
    assert str(records[1]) == "right 100 % of the time"
    assert str(records[2]) == "right 50 % of the time"  # wrong once, which says nothing about what it was
    assert str(records[3]) == "never guessed on test images"
