"""Rows of the table of losses (`probe.losses.catalogue`): margins in the representation. No torch here."""

from __future__ import annotations

from probe.losses.spec import NORM_ORDER, ROBUST, LossSpec, Parameter

MR2 = "Zhu et al., Reducing Class-Wise Performance Disparity via Margin Regularization, ICLR 2026"
ROW_SCALED = "logistic regression with each row (bias included) divided by its class's margin"
FOR_BALANCED = "designed for it; ignores counts"

C = Parameter("c", 1.0, "mean logit margin", 1e-6)
LAM = Parameter("lam", 0.1, "weight of the representation term", 0)
EMA = Parameter("ema", 0.9, "memory of the class statistics", 0, 0.9999999)
P = Parameter("p", 2.0, "order of the norm of mean and spread", 1, role=NORM_ORDER)
AVERAGE = Parameter("average", "norms", "what is averaged over batches", choices=("norms", "moments"))
UNIT = Parameter(
    "scale",
    "none",
    "unit of squared distances: none takes them as they are, spread divides them by 2 sbar",
    choices=("none", "spread"),
)

# fmt: off
MARGIN_ROWS: tuple[LossSpec, ...] = (
    LossSpec(
        "elm", "embedding and logit margins",
        "Jitkrittum et al., ELM: Embedding and Logit Margins for Long-Tail Learning, 2022", "margins:ELM",
        (
            Parameter("lam", 0.01, "weight of the embedding term", 0),
            Parameter("alpha", "count", "how the embedding margin follows the class size",
                      choices=("count", "sqrt-count", "prior", "sqrt-prior")),
            Parameter("alpha_scale", 1.0, "factor on the embedding margin", 0),
            Parameter("tau", 1.0, "how much of log prior is added to the logits"),
            UNIT,
        ),
        needs=("features", "counts"), frozen="exact",
        why="the embedding term is constant, so it is logit adjustment",
        balanced="cross-entropy plus the embedding term with one margin",
    ),
    LossSpec(
        "mr2", "margin regularisation, free of the features' scale", MR2, "margins:MR2",
        (
            C,
            Parameter("lam", 0.5, "weight of the representation term", 0),
            EMA,
            P,
            Parameter("scale", "spread", "unit of squared distances: the running mean spread, the batch's "
                      "total variance with its gradient, or none, which is the paper's term",
                      choices=("spread", "total", "none"), scratch="total"),
            Parameter("statistic", "spread", "what margins follow: the spread, or the second moment",
                      choices=("spread", "moment")),
            Parameter("power", 1 / 3, "of the statistic: 0 makes margins equal, larger ones differ more", 0),
            Parameter("robust", False, "hold outliers back in the class statistics", role=ROBUST,
                      whole_set=True),
            Parameter("cap", None, "largest margin over the mean one; none: no limit", 1, whole_set=3.0),
            Parameter("shrink", 0.0, "images' worth of the mean over classes in each class's statistic", 0,
                      whole_set=2.0),
            AVERAGE,
        ),
        needs=("features",), frozen="exact", why=ROW_SCALED, balanced=FOR_BALANCED, version=5,
    ),
    LossSpec(
        "mr2-paper", "margin regularisation, the paper's form", MR2, "margins:PaperMR2",
        (C, LAM, EMA, P, AVERAGE),
        needs=("features",), frozen="exact", why=ROW_SCALED, balanced=FOR_BALANCED,
    ),
    LossSpec(
        "mr2-early", "margin regularisation, the authors' earlier build", MR2 + " (code)", "margins:EarlyMR2",
        (LAM, EMA),
        needs=("features",), frozen="exact", why=ROW_SCALED, balanced=FOR_BALANCED,
    ),
    LossSpec(
        "mr2-released", "margin regularisation, the released ImageNet form", MR2 + " (code)",
        "margins:ReleasedMR2",
        (
            LAM,
            Parameter("ema", 0.999, "memory of the class statistics", 0, 0.9999999),
            Parameter("p", 5.0, "order of the norm of mean and spread", 1, role=NORM_ORDER),
        ),
        needs=("features",), frozen="exact",
        why="logistic regression with each row divided by its class's margin (5-norm statistics)",
        balanced=FOR_BALANCED,
    ),
)
# fmt: on
