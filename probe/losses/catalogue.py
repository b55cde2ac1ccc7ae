"""The table of losses: what each is called, needs and can do. No torch here.

`probe methods` prints it, `probe.losses.make` checks names and parameters against it, and recipes take their
defaults from it. A loss is one row here and one small class in the module that `implementation` names, whose
constructor repeats the defaults (a test compares the two). A package of its own adds one by `register`, or by
an entry point of the group "mr2_probe.losses".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.errors import UserError, nearest
from probe.losses.long_tail_rows import BETA, CONSTANT, CUI19, LONG_TAIL_ROWS
from probe.losses.margin_rows import MARGIN_ROWS, UNIT
from probe.losses.spec import FEATURE_SIZE, HELD_OUT_FREQUENCY, LossSpec, Parameter

CAO19 = "Cao et al., Learning Imbalanced Datasets with LDAM Loss, NeurIPS 2019"
COSINE = "acts, but a cosine head is not convex: train it by SGD"
SCALE = Parameter("scale", 30.0, "factor on the cosines before the softmax", 1e-6)
RAMP = Parameter(
    "ramp", 0.0, "part of a training over which it grows out of cross-entropy", 0, 1, whole_set=0.5
)
BY_VARIANCE = Parameter(
    "scale",
    "none",
    "unit of squared distances: none takes them as they are, spread: 2 sbar, total: twice the total variance",
    choices=("none", "spread", "total"),
    whole_set="total",
)

# fmt: off
LOSSES: tuple[LossSpec, ...] = (
    # of logits or cosines alone
    LossSpec(
        "erm", "cross-entropy", "empirical risk minimisation", "adjusted:ERM",
        frozen="exact", why="multinomial logistic regression", soft_targets=True,
    ),
    LossSpec(
        "label-smoothing", "cross-entropy with smoothed labels",
        "Szegedy et al., Rethinking the Inception Architecture, CVPR 2016", "modulated:LabelSmoothing",
        (Parameter("smoothing", 0.1, "mass of a label that is shared by all classes", 0, 1),),
        why="acts; its labels are probabilities, which the exact solver does not take", soft_targets=True,
    ),
    LossSpec(
        "focal", "focal loss", "Lin et al., Focal Loss for Dense Object Detection, ICCV 2017",
        "modulated:Focal",
        (Parameter("gamma", 2.0, "how strongly easy samples are down-weighted", 0),),
        soft_targets=True,
    ),
    LossSpec(
        "gce", "generalised cross-entropy", "Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018",
        "modulated:GCE",
        (Parameter("q", 0.7, "towards 0 is cross-entropy, 1 is 1 - p", 1e-6, 1), RAMP),
        soft_targets=True, version=2,
    ),
    LossSpec(
        "dual-focal", "dual focal loss", "Tao et al., Dual Focal Loss for Calibration, ICML 2023",
        "modulated:DualFocal",
        (Parameter("gamma", 5.0, "power of 1 - p_y + p_j, p_j the next probability below p_y", 0), RAMP),
        version=2,
    ),
    LossSpec(
        "cb", "class-balanced weights", CUI19, "adjusted:ClassBalanced",
        (BETA,),
        needs=("counts",), frozen="exact", why="weighted logistic regression", groups=True,
        balanced="exactly cross-entropy", soft_targets=True,
    ),
    LossSpec(
        "cb-focal", "class-balanced focal loss", CUI19, "modulated:ClassBalancedFocal",
        (BETA, Parameter("gamma", 1.0, "how strongly easy samples are down-weighted", 0)),
        needs=("counts",), why="acts, but is not convex for any gamma > 0", balanced="exactly focal",
        soft_targets=True,
    ),
    LossSpec(
        "la", "logit adjustment", "Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021",
        "adjusted:LogitAdjustment",
        (Parameter("tau", 1.0, "how much of log prior is added"),),
        needs=("counts",), frozen="exact",
        why="logistic regression with shifted logits; with a free bias it equals post-hoc adjustment",
        balanced="exactly cross-entropy", soft_targets=True,
    ),
    LossSpec(
        "bs", "balanced softmax", "Ren et al., Balanced Meta-Softmax, NeurIPS 2020",
        "adjusted:LogitAdjustment",
        needs=("counts",), frozen="exact", why="logit adjustment with tau 1",
        balanced="exactly cross-entropy", soft_targets=True,
    ),
    LossSpec(
        "ef", "effective-frequency adjustment", "Cui et al., Classes Are Not Equal, CVPR 2024 (eq. 11)",
        "adjusted:EffectiveFrequency",
        (
            Parameter("frequency", None, "K numbers: mean held-out probability of each class's own samples",
                      role=HELD_OUT_FREQUENCY),
            Parameter("tau", 1.0, "form=prior: how much of log frequency is added", only=("form", "prior")),
            Parameter("form", "prior", "frequencies as the prior of a logit adjustment, or as class sizes "
                      "that give class-balanced weights", choices=("prior", "weights")),
            Parameter("beta", 0.9999, "form=weights: effective-number rate", 0, 0.9999999,
                      only=("form", "weights")),
        ),
        frozen="exact", why="logit adjustment with the effective frequency as prior, or weights by it",
        balanced="unchanged: it uses held-out difficulty, not counts; equal frequencies give cross-entropy",
        soft_targets=True,
    ),
    LossSpec(
        "eql", "equalization loss, softmax form",
        "Tan et al., Equalization Loss for Long-Tailed Object Recognition, CVPR 2020", "modulated:EQL",
        (
            Parameter("gamma", 0.9, "chance that a rare negative class is ignored", 0, 1),
            Parameter("threshold", 0.005, "classes with a prior below this are rare", 0, 1),
            Parameter("generator", None, "torch.Generator for the mask"),
        ),
        needs=("counts",),
        why="acts; the mask is redrawn every step, so there is no fixed problem to solve exactly",
        balanced="cross-entropy if threshold <= 1/K, else random dropping of negatives",
    ),
    LossSpec(
        "ldam", "label-distribution-aware margin", CAO19, "angular:LDAM",
        (Parameter("max_margin", 0.5, "margin of the rarest class", 0), SCALE),
        takes="cosines", needs=("counts",), why=COSINE + "; ldam-linear is convex",
        balanced="cosface with margin = max_margin, not cross-entropy", version=2,
    ),
    LossSpec(
        "ldam-linear", "label-distribution-aware margin on plain logits", CAO19, "adjusted:LinearLDAM",
        (Parameter("max_margin", 0.5, "margin of the rarest class, in logits", 0),),
        needs=("counts",), frozen="exact", why="logistic regression with the true logit lowered",
        balanced="one constant margin, not cross-entropy",
    ),
    LossSpec(
        "cosface", "additive cosine margin", "Wang et al., CosFace, CVPR 2018", "angular:CosFace",
        (Parameter("margin", 0.35, "subtracted from the true cosine", 0), SCALE),
        takes="cosines", why=COSINE, version=2,
    ),
    LossSpec(
        "arcface", "additive angular margin", "Deng et al., ArcFace, CVPR 2019", "angular:ArcFace",
        (
            Parameter("margin", 0.5, "added to the true angle, radians", 0),
            SCALE,
            Parameter("guard", False, "cosine - m sin m where the angle plus the margin passes pi",
                      whole_set=True),
        ),
        takes="cosines", why=COSINE, version=2,
    ),
    LossSpec(
        "sphereface", "multiplicative angular margin, monotone form", "Liu et al., SphereFace, CVPR 2017",
        "angular:SphereFace",
        (
            Parameter("margin", 4, "factor on the true angle, a whole number", 1),
            SCALE,
            Parameter("blend", 0.0, "how much of the plain cosine is mixed in: psi becomes (psi + b cos) / "
                      "(1 + b)", 0, whole_set=5.0),
        ),
        takes="cosines", why=COSINE, version=2,
    ),
    LossSpec(
        "dbm", "difficulty-aware balancing margin",
        "Son et al., Difficulty-aware Balancing Margin Loss, AAAI 2025", "angular:DBM",
        (
            Parameter("margin", 0.1, "margin of the rarest class, radians (the paper's K)", 0),
            Parameter("tau", 1.0, "how fast the margin falls with the count", 0),
            Parameter("scale", 32.0, "factor on the cosines before the softmax", 1e-6),
            Parameter("base", "ce", "the loss around the margin", choices=("ce", "cb", "bs")),
            Parameter("positives", "hard", "who gets the instance margin", choices=("hard", "all", "none")),
            BETA,
        ),
        takes="cosines", needs=("counts",), why=COSINE, version=2,
        balanced="arcface with this margin plus the hard positives' margin, not cross-entropy",
    ),
    # of features, of outputs as a whole, or of classes
    LossSpec(
        "lgm", "large-margin Gaussian mixture",
        "Wan et al., Rethinking Feature Distribution for Loss Functions, CVPR 2018", "lgm:LGM",
        (
            Parameter("alpha", 0.1, "margin: factor on the true distance", 0),
            Parameter("lam", 0.01, "weight of the likelihood term", 0),
            Parameter("diagonal", False, "learn a variance for each dimension and class"),
            Parameter("dim", None, "feature size; None takes it from the first batch", role=FEATURE_SIZE),
            RAMP,
        ),
        needs=("features",), why="a Gaussian head of its own; not convex", owns_head=True, version=2,
    ),
    LossSpec(
        "cmic", "conditional mutual information constraint",
        "Yang et al., CMI Constrained Deep Learning for Classification, TNNLS 2025", "output_terms:CMIC",
        (
            Parameter("lam", 0.5, "weight of the concentration term", 0),
            Parameter("beta", 0.1, "weight of the separation term; too large diverges", 0),
            Parameter("ema", 0.9, "memory of the class centroids; 0 uses the batch alone", 0, 0.9999999),
            Parameter("cap", None, "largest separation that counts, in nats; none: no limit", 0,
                      whole_set=10.0),
            RAMP,
        ),
        version=2,
    ),
    LossSpec(
        "csr", "confusional spectral regularisation",
        "Jin et al., Enhancing Robust Fairness via Confusional Spectral Regularization, ICLR 2025",
        "output_terms:CSR",
        (Parameter("weight", 1.0, "weight of the confusion matrix's spectral norm", 0), RAMP),
        version=2,
    ),
    LossSpec(
        "center", "center loss", "Wen et al., A Discriminative Feature Learning Approach, ECCV 2016",
        "representation:Center",
        (
            Parameter("lam", 0.003, "weight of the mean squared distance to the centre over 2, or 2 sbar", 0),
            Parameter("alpha", 0.5, "step of the centres", 0, 1),
            UNIT,
        ),
        needs=("features",), frozen="no effect", why=CONSTANT,
    ),
    LossSpec(
        "supcon", "supervised contrastive loss",
        "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020", "representation:SupCon",
        (
            Parameter("temperature", 0.1, "temperature of the similarities", 1e-6),
            Parameter("base_temperature", 0.07, "only a factor: temperature / base_temperature", 1e-6),
        ),
        needs=("features",), frozen="no effect", why="it trains the encoder only; the logits are ignored",
    ),
    LossSpec(
        "spread-out", "spread-out regulariser",
        "Zhang et al., Learning Spread-out Local Feature Descriptors, ICCV 2017", "representation:SpreadOut",
        (Parameter("lam", 1.0, "weight next to cross-entropy", 0),),
        needs=("features",), frozen="no effect", why=CONSTANT,
    ),
    LossSpec(
        "range", "range loss", "Zhang et al., Range Loss for Deep Face Recognition, ICCV 2017",
        "representation:Range",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("k", 2, "largest distances of a class that count", 1),
            Parameter("alpha", 0.5, "weight of the spread within classes", 0),
            Parameter("beta", 0.5, "weight of the distance between centres", 0),
            Parameter("margin", 5.0, "wanted squared distance of the closest centres", 0),
            BY_VARIANCE, RAMP,
        ),
        needs=("features",), frozen="no effect", why=CONSTANT, version=2,
    ),
    LossSpec(
        "dro-lt", "distributional robustness loss",
        "Samuel and Chechik, Distributional Robustness Loss for Long-Tail Learning, ICCV 2021",
        "representation:DROLT",
        (
            Parameter("lam", 1.0, "weight next to cross-entropy", 0),
            Parameter("margin", 0.1, "epsilon of class k is margin / sqrt(prior)", 0),
            Parameter("ema", 0.9, "memory of the class prototypes; 0 uses the batch alone", 0, 0.9999999),
            BY_VARIANCE, RAMP,
        ),
        needs=("features", "counts"), frozen="no effect", why=CONSTANT, version=2,
        balanced="cross-entropy plus the term with one epsilon",
    ),
    *MARGIN_ROWS,
    *LONG_TAIL_ROWS,
    LossSpec(
        "dro", "distributionally robust optimisation over classes",
        "Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020", "class_dro:DRO",
        (
            Parameter("eta", 0.01, "step of the class weights", 0),
            Parameter("adjustment", 0.0, "C of C / sqrt(count), added to a class's loss for the weights", 0),
            Parameter("sharpness", 16.0, "exact solver: the maximum is smoothed within log(K) / sharpness",
                      0.001),
        ),
        frozen="exact", why="convex: the smoothed maximum of the class losses", groups=True,
        balanced="not cross-entropy: it follows the worst class",
    ),
    LossSpec(
        "fairdro", "class-wise robust optimisation in a chi-square ball",
        "Jung et al., Re-weighting Based Group Fairness Regularization, ICLR 2023", "class_dro:FairDRO",
        (
            Parameter("rho", 0.5, "radius of the ball; weights stay positive up to 1 / (2 (K - 1))", 0),
            Parameter("every", "batch", "when the weights move: by each batch, once an epoch by its batches, "
                      "or once an epoch by a pass over the training set, as released",
                      choices=("batch", "epoch", "pass")),
            Parameter("schedule", "linear", "how the step falls over epochs",
                      choices=("linear", "cosine", "constant")),
            Parameter("project", True, "keep the weights on the simplex"),
        ),
        why="acts; convex only while the weights stay positive", groups=True, version=2,
        balanced="not cross-entropy: it follows the harder classes",
    ),
)
# fmt: on

_BUILT_IN = {spec.name: spec for spec in LOSSES}
_ADDED: dict[str, LossSpec] = {}  # registered, or found in another package


def register(spec: LossSpec) -> None:
    """Add a loss from outside; its class extends `probe.losses.base.Loss`, or `MeanLoss` there.

    >>> register(LossSpec("my-loss", "a loss of mine", "unpublished", MyLoss))
    """
    if is_known(spec.name):
        raise UserError(f'there is a loss "{spec.name}" already; choose another name')
    _ADDED[spec.name] = spec


def specs() -> list[LossSpec]:
    """Every row: the built-in ones, then what was registered and what installed packages add."""
    from probe import plugins

    ours = {**_BUILT_IN, **_ADDED}
    theirs = plugins.rows("losses", LossSpec, taken=_BUILT_IN)
    return [*ours.values(), *(spec for spec in theirs if spec.name not in ours)]


def names() -> list[str]:
    """The names `make` knows: the table's in its order, then those added from outside."""
    from probe import plugins

    return list(dict.fromkeys([*_BUILT_IN, *_ADDED, *plugins.names("losses")]))


def is_known(name: str) -> bool:
    """Is there a loss of that name? Other packages are only looked at if it is not built in."""
    return name in _BUILT_IN or name in _ADDED or name in names()


def is_built_in(spec: LossSpec) -> bool:
    """Is this a row of the table above, and not one from outside?"""
    return _BUILT_IN.get(spec.name) is spec


def info(name: str) -> LossSpec:
    """The row of one loss.

    >>> info("la").frozen
    'exact'
    """
    if name not in _BUILT_IN and name not in _ADDED:
        from probe import plugins

        found = plugins.find("losses", name, LossSpec)
        if found is None:
            raise UserError(f'there is no loss "{name}"{nearest(name, names())}')
        _ADDED[name] = found
    return _BUILT_IN.get(name) or _ADDED[name]


def check_groups(name: str) -> None:
    """Refuse a loss, or a method, that cannot act on groups that are not the classes."""
    acting = [spec.name for spec in _BUILT_IN.values() if spec.groups]
    if not (is_known(name) and info(name).groups):
        why = "it finds its images by their errors" if name == "jtt" else "it acts on classes"
        raise UserError(f"{name} takes no method.groups: {why}; {', '.join(acting)} act on groups")


def resolve(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a loss: its defaults, replaced by what was given and is allowed."""
    return info(name).resolve(given)
