"""Rows of the table of losses (`probe.losses.catalogue`): what long-tail papers compare. No torch here."""

from __future__ import annotations

from probe.losses.spec import LossSpec, Parameter

ELM = "Jitkrittum et al., ELM: Embedding and Logit Margins for Long-Tail Learning, 2022"
CUI19 = "Cui et al., Class-Balanced Loss, CVPR 2019"
CONSTANT = "its term is constant without a trainable encoder or adapter: the probe is plain cross-entropy"
BETA = Parameter("beta", 0.9999, "effective-number rate: 0 is plain, towards 1 is 1/count", 0, 0.9999999)
UNIT_VECTORS = Parameter("unit", True, "on unit vectors; false takes the features as they are")

# fmt: off
LONG_TAIL_ROWS: tuple[LossSpec, ...] = (
    LossSpec(
        "margin-softmax", "softmax with any margin between two classes", ELM + " (eq. 3)",
        "adjusted:MarginSoftmax",
        (
            Parameter("delta", "log-ratio", "margin of true class y over class k: log(pi_k / pi_y), pi_k, "
                      "pi_y^(-1/4), (n_min / n_y)^(1/4), 1, or the given matrix",
                      choices=("log-ratio", "prior", "inverse-root", "ldam", "constant", "matrix")),
            Parameter("factor", 1.0, "on every margin"),
            Parameter("matrix", None, "K x K margins, a row for each true class, for delta=matrix"),
        ),
        needs=("counts",), frozen="exact", why="logistic regression with logits shifted by the true class",
        balanced="cross-entropy with delta=log-ratio, else one constant margin",
    ),
    LossSpec(
        "cb-focal-sigmoid", "class-balanced focal loss of K sigmoids", CUI19,
        "modulated:ClassBalancedFocalSigmoid",
        (
            BETA,
            Parameter("gamma", 1.0, "how strongly easy entries are down-weighted", 0),
            Parameter("prior", 0.5, "probability of a class at logit 0: another one is a start of the bias",
                      1e-6, 1 - 1e-6),
        ),
        needs=("counts",), why="acts, but is not convex for any gamma > 0",
        balanced="focal loss of K sigmoids", soft_targets=True,
    ),
    LossSpec(
        "dot-regression", "dot-regression loss on a fixed simplex",
        "Yang et al., Inducing Neural Collapse in Imbalanced Learning, NeurIPS 2022", "angular:DotRegression",
        (Parameter("weight", 0.5, "of the mean (cosine - 1)^2 of the true class", 0),),
        takes="cosines", frozen="no effect", fixed_head=True,
        why="its class vectors are fixed, so that something in front of them must be trained",
    ),
    LossSpec(
        "triplet", "triplet term on all triplets of a batch",
        "Weinberger and Saul, Distance Metric Learning for LMNN, JMLR 2009; " + ELM, "pair_terms:Triplet",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("margin", 0.2, "wanted gap between similarities", 0),
            UNIT_VECTORS,
        ),
        needs=("features",), frozen="no effect", why=CONSTANT,
    ),
    LossSpec(
        "contrastive", "contrastive term with labels", ELM, "pair_terms:Contrastive",
        (
            Parameter("lam", 0.5, "weight next to cross-entropy", 0),
            Parameter("temperature", 0.1, "temperature of the similarities", 1e-6),
            UNIT_VECTORS,
        ),
        needs=("features",), frozen="no effect", why=CONSTANT,
    ),
    LossSpec(
        "dro-lt-released", "distributional robustness loss, the released form",
        "Samuel and Chechik, Distributional Robustness Loss for Long-Tail Learning, ICCV 2021 (code)",
        "prototypes:ReleasedDROLT",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("temperature", 1.0, "distances are divided by it", 1e-6),
        ),
        needs=("features",), frozen="no effect", why=CONSTANT,
    ),
)
# fmt: on
