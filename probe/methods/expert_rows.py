"""Rows of the table of methods (`probe.methods.catalogue`): two networks or more. No torch here."""

from __future__ import annotations

from probe.losses.spec import Parameter
from probe.methods.spec import MethodSpec
from probe.recipe.grammar import INNER

EXPERTS = (
    Parameter("experts", 3, "networks that are trained together; their mean predicts", 1),
    Parameter("hard", None, "classes of the hard set, the true one included; none: 30 % of them", 1),
    Parameter("factor", 0.6, "weight of what experts learn from each other", 0),
    Parameter(
        "weight", 0.5, "of all but the contrast; 1 as published, which is twice the rate of one network", 0
    ),
    Parameter(
        "ramp", 0.2, "part of the epochs over which hard classes and experts come in; 0 as published", 0, 1
    ),
    Parameter("contrast", 0.0, "weight of a MoCo loss for each expert; 1 as published for CIFAR", 0),
)

EXPERT_ROWS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "lff",
        "learning from failure",
        "Nam et al., Learning from Failure, NeurIPS 2020",
        "lff:LfF",
        (
            Parameter(
                "q", 0.7, "of the twin's generalised cross-entropy: how much it trusts easy samples", 1e-6, 1
            ),
            Parameter("ema", 0.7, "memory of a sample's losses", 0, 0.9999999),
        ),
        why="a second head beside the first; two heads on one convex problem differ little",
        balanced="unchanged: it uses losses, not counts",
    ),
    MethodSpec(
        "ncl",
        "nested collaborative learning",
        "Li et al., Nested Collaborative Learning, CVPR 2022",
        "ncl:NCL",
        EXPERTS,
        needs=("counts",),
        version=2,  # the mean of the experts predicts, not the first of them
        frozen="no effect",
        why="experts on the same features would be equal; it needs views and encoders",
        balanced="cross-entropy in the place of balanced softmax",
    ),
    MethodSpec(
        "dbm-ncl",
        "nested collaborative learning with the difficulty-aware margin",
        "Son et al., Difficulty-aware Balancing Margin Loss, AAAI 2025",
        "ncl:NCL",
        (*EXPERTS, Parameter(INNER, "dbm", "the loss inside, which gives the experts' logits")),
        needs=("counts",),
        version=2,  # the mean of the experts predicts, not the first of them
        frozen="no effect",
        why="experts on the same features would be equal; it needs views and encoders",
        balanced="one margin for all classes, and no prior",
    ),
)
