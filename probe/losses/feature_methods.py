"""The rows of the catalogue that look at features, at outputs as a whole, or at classes. No torch here."""

from __future__ import annotations

from probe.losses.spec import LossSpec, Parameter

MR2 = "Zhu et al., Reducing Class-Wise Performance Disparity via Margin Regularization, ICLR 2026"
CONSTANT = "its term is constant without a trainable encoder or adapter: the probe is plain cross-entropy"

FEATURE_METHODS: tuple[LossSpec, ...] = (
    LossSpec(
        "lgm",
        "large-margin Gaussian mixture",
        "Wan et al., Rethinking Feature Distribution for Loss Functions, CVPR 2018",
        "lgm:LGM",
        (
            Parameter("alpha", 0.1, "margin: factor on the true distance", 0),
            Parameter("lam", 0.01, "weight of the likelihood term", 0),
            Parameter("diagonal", False, "learn a variance for each dimension and class"),
            Parameter("dim", None, "feature size; None takes it from the first batch"),
        ),
        needs=("features",),
        why="a Gaussian head of its own; not convex",
        owns_head=True,
    ),
    LossSpec(
        "cmic",
        "conditional mutual information constraint",
        "Yang et al., CMI Constrained Deep Learning for Classification, TNNLS 2025",
        "output_terms:CMIC",
        (
            Parameter("lam", 0.5, "weight of the concentration term", 0),
            Parameter("beta", 0.1, "weight of the separation term; too large diverges", 0),
            Parameter("ema", 0.9, "memory of the class centroids; 0 uses the batch alone", 0, 0.9999999),
        ),
    ),
    LossSpec(
        "csr",
        "confusional spectral regularisation",
        "Jin et al., Enhancing Robust Fairness via Confusional Spectral Regularization, ICLR 2025",
        "output_terms:CSR",
        (Parameter("weight", 1.0, "weight of the confusion matrix's spectral norm", 0),),
    ),
    LossSpec(
        "center",
        "center loss",
        "Wen et al., A Discriminative Feature Learning Approach, ECCV 2016",
        "representation:Center",
        (
            Parameter("lam", 0.003, "weight of half the mean squared distance to the centre", 0),
            Parameter("alpha", 0.5, "step of the centres", 0, 1),
        ),
        needs=("features",),
        frozen="no effect",
        why=CONSTANT,
    ),
    LossSpec(
        "supcon",
        "supervised contrastive loss",
        "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020",
        "representation:SupCon",
        (
            Parameter("temperature", 0.1, "temperature of the similarities", 1e-06),
            Parameter("base_temperature", 0.07, "only a factor: temperature / base_temperature", 1e-06),
        ),
        needs=("features",),
        frozen="no effect",
        why="it trains the encoder only; the logits are ignored",
    ),
    LossSpec(
        "spread-out",
        "spread-out regulariser",
        "Zhang et al., Learning Spread-out Local Feature Descriptors, ICCV 2017",
        "representation:SpreadOut",
        (Parameter("lam", 1.0, "weight next to cross-entropy", 0),),
        needs=("features",),
        frozen="no effect",
        why=CONSTANT,
    ),
    LossSpec(
        "range",
        "range loss",
        "Zhang et al., Range Loss for Deep Face Recognition, ICCV 2017",
        "representation:Range",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("k", 2, "largest distances of a class that count", 1),
            Parameter("alpha", 0.5, "weight of the spread within classes", 0),
            Parameter("beta", 0.5, "weight of the distance between centres", 0),
            Parameter("margin", 5.0, "wanted squared distance of the closest centres", 0),
        ),
        needs=("features",),
        frozen="no effect",
        why=CONSTANT,
    ),
    LossSpec(
        "dro-lt",
        "distributional robustness loss",
        "Samuel and Chechik, Distributional Robustness Loss for Long-Tail Learning, ICCV 2021",
        "representation:DROLT",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("margin", 0.1, "epsilon of class k is margin / sqrt(prior)", 0),
            Parameter("ema", 0.9, "memory of the class prototypes; 0 uses the batch alone", 0, 0.9999999),
        ),
        needs=("features", "counts"),
        frozen="no effect",
        why=CONSTANT,
        balanced="cross-entropy plus the term with one epsilon",
    ),
    LossSpec(
        "elm",
        "embedding and logit margins",
        "Jitkrittum et al., ELM: Embedding and Logit Margins for Long-Tail Learning, 2022",
        "margins:ELM",
        (
            Parameter("lam", 0.01, "weight of the embedding term", 0),
            Parameter(
                "alpha",
                "count",
                "how the embedding margin follows the class size",
                choices=("count", "sqrt-count", "prior", "sqrt-prior"),
            ),
            Parameter("alpha_scale", 1.0, "factor on the embedding margin", 0),
            Parameter("tau", 1.0, "how much of log prior is added to the logits"),
        ),
        needs=("features", "counts"),
        frozen="exact",
        why="the embedding term is constant, so it is logit adjustment",
        balanced="cross-entropy plus the embedding term with one margin",
    ),
    LossSpec(
        "mr2",
        "margin regularisation",
        MR2,
        "margins:MR2",
        (
            Parameter("c", 1.0, "mean logit margin", 1e-06),
            Parameter("lam", 0.1, "weight of the representation term", 0),
            Parameter("ema", 0.9, "memory of the class statistics", 0, 0.9999999),
            Parameter("p", 2.0, "order of the norm of mean and spread", 1),
            Parameter("statistics", "norms", "what is averaged over batches", choices=("norms", "moments")),
        ),
        needs=("features",),
        frozen="exact",
        why="logistic regression with each row (bias included) divided by its class's margin",
        balanced="designed for it; ignores counts",
    ),
    LossSpec(
        "mr2-released",
        "margin regularisation, the released ImageNet form",
        MR2 + " (code)",
        "margins:ReleasedMR2",
        (
            Parameter("lam", 0.1, "weight of the representation term", 0),
            Parameter("ema", 0.999, "memory of the class statistics", 0, 0.9999999),
            Parameter("p", 5.0, "order of the norm of mean and spread", 1),
        ),
        needs=("features",),
        frozen="exact",
        why="logistic regression with each row divided by its class's margin (5-norm statistics)",
        balanced="designed for it; ignores counts",
    ),
    LossSpec(
        "dro",
        "distributionally robust optimisation over classes",
        "Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020",
        "class_dro:DRO",
        (
            Parameter("eta", 0.01, "step of the class weights", 0),
            Parameter("adjustment", 0.0, "C of C / sqrt(count), added to a class's loss for the weights", 0),
            Parameter(
                "sharpness", 16.0, "exact solver: the maximum is smoothed within log(K) / sharpness", 1e-3
            ),
        ),
        frozen="exact",
        why="convex: the smoothed maximum of the class losses",
        balanced="not cross-entropy: it follows the worst class",
    ),
    LossSpec(
        "fairdro",
        "class-wise robust optimisation in a chi-square ball",
        "Jung et al., Re-weighting Based Group Fairness Regularization, ICLR 2023",
        "class_dro:FairDRO",
        (
            Parameter("rho", 0.5, "radius of the ball; weights stay positive up to 1 / (2 (K - 1))", 0),
            Parameter("every", "batch", "when the weights move", choices=("batch", "epoch")),
            Parameter(
                "schedule",
                "linear",
                "how the step falls over epochs",
                choices=("linear", "cosine", "constant"),
            ),
            Parameter("project", True, "keep the weights on the simplex"),
        ),
        why="acts; convex only while the weights stay positive",
        balanced="not cross-entropy: it follows the harder classes",
    ),
)
