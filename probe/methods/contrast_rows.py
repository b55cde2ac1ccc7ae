"""Rows of methods that contrast views of images: a part of the table in `catalogue`. No torch here."""

from __future__ import annotations

from probe.losses.spec import Parameter
from probe.methods.spec import MethodSpec
from probe.recipe.grammar import INNER

CONSTANT = "its contrast is constant without a trainable encoder or adapter"
KHOSLA20 = "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020"
ZHU22 = "Zhu et al., Balanced Contrastive Learning for Long-Tailed Visual Recognition, CVPR 2022"
SUH23 = "Suh and Seo, Long-tailed Recognition by Mutual Information Maximization, ICML 2023"
SON25 = "Son et al., Difficulty-aware Balancing Margin Loss, AAAI 2025"
BALANCED = "counts drop out; the contrast stays"
AGAINST_KEYS = "log pi is one constant, which weighs labels against keys; prior=false leaves it out"

HIDDEN = Parameter("hidden", 512, "width of the projection's hidden layer", 1)
EMBEDDING = Parameter("embedding", 128, "numbers of a projection", 1)
MOMENTUM = Parameter("momentum", 0.999, "of the copy that makes the keys; 0 is the network itself", 0, 1)


def _loss(default: str, says: str = "the loss of the classifier's view") -> Parameter:
    return Parameter(INNER, default, says)


def _temperature(default: float) -> Parameter:
    return Parameter("temperature", default, "temperature of the similarities", 1e-6)


BCL = (
    Parameter("supervised", 1.0, "weight of the classifier's loss", 0),
    Parameter("contrast", 0.35, "weight of the contrast", 0),
    _temperature(0.07),
    HIDDEN,
    EMBEDDING,
)
PACO = (
    Parameter(
        "alpha",
        None,
        "weight of a key of the same class; none: 0.05, or less, so that a class's keys weigh at most "
        "half a label; published: 0.05 (ImageNet), 0.01 (CIFAR-100)",
        0,
    ),
    Parameter("beta", 1.0, "weight of the label", 0),
    Parameter("gamma", 1.0, "of the keys in the denominator; 0 leaves them out", 0),
    _temperature(0.2),
    Parameter("queue", 1024, "keys that are remembered", 1),
    HIDDEN,
    EMBEDDING,
    Parameter("prior", True, "add the logarithm of the class frequencies to the logits"),
)
GML = (
    Parameter("supervised", 1.0, "weight of the classifier's loss", 0),
    Parameter("contrast", 1.0, "weight of each of the two contrasts", 0),
    _temperature(0.1),
    Parameter("queue", 4096, "keys that are remembered, more where classes need them", 1),
    Parameter("least", 2, "keys of each class that the queue has places for", 1),
    Parameter("hidden", 512, "width of the projection's hidden layer", 1),
    Parameter("embedding", 32, "numbers of a projection", 1),
    MOMENTUM,
    Parameter("teacher", None, "a run folder whose network makes the keys and is distilled"),
    Parameter("distil", 1.0, "weight of the distillation, where there is a teacher", 0),
    Parameter("distil_temperature", 4.0, "of the distilled logits", 1e-6),
)
ONLY = "bs alone: the labels stand in one softmax with the keys"

CONTRAST_ROWS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "supcon", "supervised contrastive learning, beside cross-entropy or before it", KHOSLA20,
        "supcon:SupCon",
        (
            Parameter("stage", "joint", "joint: both at once; two: the contrast, then a head on its encoder",
                      choices=("joint", "two")),
            Parameter("weight", 0.5, "of the contrast, where both act at once", 0, only=("stage", "joint")),
            _temperature(0.1),
            Parameter("base_temperature", 0.07, "only a factor: temperature / base_temperature", 1e-6),
            Parameter("head_epochs", 0.2, "part of the epochs that the second of two stages has", 0, 1,
                      only=("stage", "two")),
            HIDDEN,
            EMBEDDING,
            _loss("erm", "the loss of the classifier"),
        ),
        needs=("views",), frozen="no effect", why=CONSTANT, version=2,
    ),
    MethodSpec(
        "bcl", "balanced contrastive learning", ZHU22, "bcl:BCL", (*BCL, _loss("bs")),
        needs=("views",), frozen="no effect", why=CONSTANT, balanced=BALANCED, version=2,
    ),
    MethodSpec(
        "dbm-bcl", "balanced contrastive learning with a difficulty-aware margin", SON25, "bcl:BCL",
        (*BCL, _loss("dbm(base=bs)")),
        takes="cosines", needs=("views",), frozen="no effect", why=CONSTANT, balanced=BALANCED,
    ),
    MethodSpec(
        "paco", "parametric contrastive learning",
        "Cui et al., Parametric Contrastive Learning, ICCV 2021", "paco:PaCo",
        (*PACO, MOMENTUM, Parameter(INNER, "bs", ONLY, choices=("bs",))),
        needs=("counts", "views"), frozen="no effect", why=CONSTANT, balanced=AGAINST_KEYS, version=2,
    ),
    MethodSpec(
        "gpaco", "generalised parametric contrastive learning",
        "Cui et al., Generalized Parametric Contrastive Learning, TPAMI 2023", "paco:GPaCo",
        (
            *PACO,
            Parameter("smoothing", 0.0, "part of the label's weight that the other classes share; published "
                      "for ImageNet: 0.1", 0, 1),
            Parameter(INNER, "bs", ONLY, choices=("bs",)),
        ),
        needs=("counts", "views"), frozen="no effect", why=CONSTANT, balanced=AGAINST_KEYS, version=2,
    ),
    MethodSpec(
        "gml", "Gaussian mixture likelihood of keys, beside the balanced softmax", SUH23, "gml:GML",
        (*GML, _loss("bs")),
        needs=("counts", "views"), frozen="no effect", why=CONSTANT, balanced=BALANCED,
    ),
    MethodSpec(
        "dbm-gml", "the same with a difficulty-aware margin", SON25, "gml:GML",
        (*GML, _loss("dbm(base=bs, scale=30)")),
        takes="cosines", needs=("counts", "views"), frozen="no effect", why=CONSTANT, balanced=BALANCED,
    ),
)  # fmt: skip
