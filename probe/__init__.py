"""mr2-probe: how good is a pretrained backbone on your classes, above all on the hard ones?

>>> import backbones, probe
>>> b, d = backbones.load("clip-rn50"), probe.data.load("pets")
>>> f = probe.features.extract(b, d["train"])
>>> clf = probe.fit(f, method="mr2", l2=1.0)
>>> probe.evaluate(clf, probe.features.extract(b, d["test"]))["test"]["groups"]["hard"]

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes
from probe.system import interrupts

interrupts.guard()

__version__ = "0.1.0"

ROOMS = ("core", "data", "evaluation", "features", "losses", "solve", "heads", "methods", "train")
FUNCTIONS = {
    "fit": "probe.probing.classifier",
    "load": "probe.runs.model",
    "ProbeClassifier": "probe.probing.classifier",
    "evaluate": "probe.evaluation.summary",
}

if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(__name__, {**{room: f"probe.{room}" for room in ROOMS}, **FUNCTIONS})
