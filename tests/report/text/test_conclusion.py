"""The sentences of a conclusion claim what the numbers support, and no more."""

import pytest

from probe.report.text.certainty import cause, classes_differ, rank_note
from probe.report.text.conclusion import conclusion, next_command


def row(name, accuracy, n=100, group="all", half=0.05):
    ci = [max(0, accuracy - half), min(1, accuracy + half)]
    return {"name": name, "n": n, "accuracy": accuracy, "ci": ci, "group": group}


def result(*rows, groups=None, **more):
    images = sum(r["n"] for r in rows)
    top1 = sum(r["n"] * r["accuracy"] for r in rows) / images
    groups = groups or {"all": [r["name"] for r in rows]}
    accuracy = {r["name"]: r["accuracy"] for r in rows}
    blocks = {
        g: {"accuracy": sum(accuracy[n] for n in names) / len(names), "ci": [0, 1], "classes": names}
        for g, names in groups.items()
    }
    test = {"top1": top1, "ci": [top1 - 0.02, top1 + 0.02], "groups": blocks, "by_class": list(rows)}
    return {
        "test": test,
        "recipe": {"data": {"name": "pets"}, "method": {"name": "mr2"}},
        "backbone": {"name": "net"},
        "data": {"name": "my/pets"},
        "seeds": [{"seed": 0}],
        **more,
    }


THIRDS = {"easy": ["a"], "medium": ["b"], "hard": ["c"]}
ROWS = (row("a", 0.95), row("b", 0.9), row("c", 0.5))


def versus(hard, overall, *, clear=(False, False), seeds=3):
    def gain(mean, is_clear):
        return {"mean": mean, "ci": [mean - 0.01, mean + 0.01], "clear": is_clear}

    gains = {"overall": gain(overall, clear[1]), "easy": gain(0, False), "hard": gain(hard, clear[0])}
    return {"method": "erm", "how": None, "seeds": seeds, "gain": gains}


def test_how_good_which_classes_and_what_next():
    first, second, third = conclusion(result(*ROWS, groups=THIRDS))
    assert first == (
        "net gets 78.3 % of the test images of pets right (95 %: 76.3 to 80.3): 95.0 % on easy classes, "
        "50.0 % on hard ones."
    )
    assert second == "Hardest is c (50 %)."
    assert third.startswith("Next, let `probe improve`")


def test_the_next_command_has_the_settings_of_the_run_but_not_its_method():
    ran = "probe run --backbone net --data 'my pets' --method 'mr2(lam=1)' backbone.image_size=96 seeds=2"
    said = next_command(result(*ROWS, groups=THIRDS, command=ran))
    assert said == "probe improve --backbone net --data 'my pets' backbone.image_size=96 seeds=2"
    assert next_command(result(row("a", 1.0), row("b", 1.0), command=ran)) == ""  # nothing is left to improve
    tuned = result(*ROWS, groups=THIRDS, command=ran)
    tuned["recipe"]["finetune"] = True
    assert next_command(tuned) == ""


def test_a_class_among_others_is_told_with_the_one_it_is_mistaken_for():
    found = {"name": "c", "reasons": [{"reason": "among others"}]}
    block = {
        "look_first": {"classes": [found], "images": 100, "suspects": {"expected": 0.0}},
        "confusions": [{"true": "a", "predicted": "c"}, {"true": "c", "predicted": "b"}],
    }
    _, second, *_ = conclusion(result(*ROWS, groups=THIRDS, diagnostics=block))
    assert second == "Hardest is c (50 %, lies among other classes, mistaken for b)."


def test_a_reason_and_the_cause_are_named_where_they_are_known():
    found = {"name": "c", "reasons": [{"reason": "few images"}], "train_n": 7}
    block = {
        "look_first": {"classes": [found], "images": 100, "suspects": {"expected": 0.0}},
        "groups": {"easy": [0], "medium": [1], "hard": [2]},
        "features": {"accuracy_by": {"linear": [0.95, 0.9, 0.5], "knn": [0.9, 0.8, 0.5]}},
    }
    _, second, third = conclusion(result(*ROWS, groups=THIRDS, diagnostics=block))
    assert second == (
        "Hardest is c (50 %, only 7 training images); the features are the limit, not the classifier: a k-NN "
        "vote falls as much."
    )
    assert "collect images of c" in third


@pytest.mark.parametrize(
    ("knn", "expected"),
    [([0.9, 0.8, 0.5], "representation"), ([0.9, 0.8, 0.7], "both"), ([0.9, 0.9, 0.88], "classifier")],
)
def test_the_cause_is_where_k_nn_falls_too_or_not(knn, expected):
    block = {
        "groups": {"easy": [0], "hard": [2]},
        "features": {"accuracy_by": {"linear": [0.95, 0.9, 0.5], "knn": knn}},
    }
    rows = {"by_class": [{**r, "train_n": 10} for r in ROWS]}
    assert cause({"test": rows, "diagnostics": block}) == expected
    even = {**block, "features": {"accuracy_by": {"linear": [0.9, 0.9, 0.89], "knn": knn}}}
    assert cause({"test": rows, "diagnostics": even}) is None


def test_on_long_tailed_data_k_nn_is_no_witness_and_few_images_are_named():
    counts = {"a": 100, "b": 30, "c": 5}
    rows = [{**r, "train_n": counts[r["name"]]} for r in ROWS]
    confused = {"with": "a", "share": 0.5, "back": 0.0, "both_ways": False}
    reasons = [{"reason": "confused"}, {"reason": "few images"}]
    found = {"name": "c", "reasons": reasons, "train_n": 5, "confused": confused}
    block = {
        "look_first": {"classes": [found], "images": 135, "suspects": {"expected": 0.0}},
        "groups": {"easy": [0], "medium": [1], "hard": [2]},
        "features": {"accuracy_by": {"linear": [0.95, 0.9, 0.5], "knn": [0.9, 0.8, 0.2]}},
    }
    _, second, third = conclusion(result(*rows, groups=THIRDS, diagnostics=block))
    assert second == "Hardest is c (50 %, only 5 training images, mistaken for a)."
    assert third.startswith("Next, collect images of c")


def test_one_class_says_nothing():
    assert conclusion(result(row("a", 1.0))) == [
        "There is only one class, so an accuracy of 100.0 % says nothing.",
        "Next, use data with at least two classes.",
    ]


def test_no_errors_are_no_reason_to_improve():
    said = conclusion(result(row("a", 1.0), row("b", 1.0)))
    assert said[0].startswith("net gets all 200 test images of pets right (95 %: at least")
    assert said[1:] == ["Next, use a larger or harder test set, because this one shows no difference."]


def test_classes_that_differ_by_chance_only_are_not_called_hard():
    rows = [row("a", 0.9, n=20), row("b", 0.85, n=20), row("c", 0.8, n=20)]
    assert not classes_differ(rows)
    said = " ".join(conclusion(result(*rows, groups=THIRDS)))
    assert "No class is clearly harder than another" in said
    assert "Hardest" not in said
    assert rank_note(rows, 1) == "classes differ no more than chance would make them: these ranks are noise"


def test_nothing_clear_is_said_to_be_so():
    said = conclusion(result(*ROWS, groups=THIRDS, versus=versus(0.002, -0.0001)))[-1]
    assert said.startswith(
        "mr2 makes no clear change to erm: +0.2 points on hard classes (95 %: −0.8 to +1.2)"
    )
    assert ", 0.0 overall;" in said
    assert "helps" not in said


def test_one_seed_is_said_beside_the_interval():
    assert (
        "+1.2, with one seed)"
        in conclusion(result(*ROWS, groups=THIRDS, versus=versus(0.002, 0, seeds=1)))[-1]
    )


def test_two_seeds_are_not_called_one():
    assert "seed" not in conclusion(result(*ROWS, groups=THIRDS, versus=versus(0.002, 0, seeds=2)))[-1]


def test_a_clear_gain_and_its_cost_are_both_said():
    helped = conclusion(result(*ROWS, groups=THIRDS, versus=versus(0.03, 0.01, clear=(True, True))))[-1]
    assert helped.startswith(
        "mr2 clearly helps over erm: +3.0 points on hard classes (95 %: +2.0 to +4.0), +1.0 overall"
    )
    costly = conclusion(result(*ROWS, groups=THIRDS, versus=versus(0.03, -0.02, clear=(True, True))))[-1]
    assert "but clearly costs −2.0 overall" in costly


def test_a_harmful_method_is_called_harmful_and_not_recommended():
    said = conclusion(result(*ROWS, groups=THIRDS, versus=versus(-0.03, -0.02, clear=(True, True))))[-1]
    assert said.startswith("mr2 does harm against erm: −3.0 points on hard classes")
    assert "next, keep erm" in said


def test_a_training_that_ends_below_its_start_says_so():
    gain = {"mean": -0.036, "ci": [-0.06, -0.01], "clear": True}
    said = conclusion(result(*ROWS, groups=THIRDS, versus=versus(-0.05, -0.02), training={"gain": gain}))[-1]
    assert said.startswith(
        "Training did harm: −3.6 points against its start (95 %: −6.0 to −1.0); mr2 makes no"
    )
    assert "next, train with a smaller train.lr" in said
    fine = {"gain": {**gain, "clear": False}}
    assert "harm" not in conclusion(result(*ROWS, groups=THIRDS, training=fine))[-1]


def test_without_groups_the_gain_is_that_of_all_images():
    block = versus(0, 0.01, clear=(False, True))
    block["gain"] = {"overall": block["gain"]["overall"]}
    said = conclusion(result(*ROWS, versus=block))[-1]
    assert said.startswith("mr2 clearly helps over erm: +1.0 points overall")


def test_suspect_labels_and_leaks_come_before_other_advice():
    block = {"look_first": {"classes": [], "images": 100, "suspects": {"expected": 5.0}}}
    data = {"name": "pets", "duplicates": {"train_test": {"count": 2}}}
    said = conclusion(result(*ROWS, groups=THIRDS, diagnostics=block, data=data))[-1]
    assert said == (
        "Next, remove 2 test images that training has too, then check about 5 training labels "
        "that may be wrong."
    )


def test_equal_classes_have_no_ranks():
    assert rank_note([row("a", 0.9), row("b", 0.9)], 1) == "all classes are equally good"
    assert rank_note([row("a", 0.9)], 1) is None
    assert rank_note([row("a", 0.2, half=0.01), row("b", 0.9, half=0.01)], 1) is None
