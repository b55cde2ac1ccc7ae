"""Rows of second stages, which change a finished head: a part of the table in `catalogue`. No torch here."""

from __future__ import annotations

from probe.losses.spec import Parameter
from probe.methods.spec import MethodSpec

FIRST_STAGE = "first stage"  # what a row needs that changes a finished head
FIRST = Parameter(
    "first", None, "a run folder whose head and encoder are the first stage; none: the loss, solved"
)
NOT_TRAINED = (
    "a second stage changes a finished head and trains nothing; leave --finetune and --solver sgd out, and "
    "name the trained run with method.first"
)
KANG20 = "Kang et al., Decoupling Representation and Classifier, ICLR 2020"

SECOND_STAGES: tuple[MethodSpec, ...] = (
    MethodSpec(
        "crt",
        "classifier re-training",
        KANG20,
        "second_stage:SecondStage",
        (FIRST,),
        needs=("counts", FIRST_STAGE),
        frozen="exact",
        why="a new head of the loss, in which every class counts alike",
        balanced="exactly its inner loss",
    ),
    MethodSpec(
        "lws",
        "learnable weight scaling",
        KANG20,
        "second_stage:SecondStage",
        (Parameter("pull", 0.01, "of the scales towards 1, which keeps them finite (ours)", 1e-6), FIRST),
        needs=("counts", FIRST_STAGE),
        frozen="exact",
        why="one scale for each class, a convex problem in K numbers",
        balanced="not its first stage: the scales are learnt all the same",
    ),
    MethodSpec(
        "tau-norm",
        "tau-normalised classifier",
        KANG20,
        "second_stage:SecondStage",
        (
            Parameter(
                "tau", None, "power of the weights' lengths; none: 0 to 2, chosen by held-out images", 0
            ),
            Parameter("centre", True, "take features from the mean of the class means; false: as published"),
            FIRST,
        ),
        needs=(FIRST_STAGE,),
        frozen="exact",
        why="the first head's weights divided by |w|^tau, without a bias",
        balanced="not its first stage: lengths of weights differ there too",
    ),
    MethodSpec(
        "la-posthoc",
        "logit adjustment of a trained head",
        "Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
        "second_stage:SecondStage",
        (Parameter("tau", 1.0, "how much of log prior is subtracted"), FIRST),
        needs=("counts", FIRST_STAGE),
        frozen="exact",
        why="the first head's scores, shifted",
        balanced="exactly its first stage",
    ),
    MethodSpec(
        "temperature",
        "temperature scaling",
        "Guo et al., On Calibration of Modern Neural Networks, ICML 2017",
        "second_stage:SecondStage",
        (
            Parameter(
                "classes",
                "equal",
                "equal: every class of the held-out images counts the same; sized: every image, as published",
                choices=("equal", "sized"),
            ),
            FIRST,
        ),
        needs=(FIRST_STAGE,),
        frozen="exact",
        why="the first head's scores divided by one number: predictions stay, probabilities change",
        balanced="still acts; classes=equal and sized agree",
        version=2,
    ),
)
