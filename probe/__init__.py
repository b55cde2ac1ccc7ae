"""mr2-probe: how good is a pretrained backbone on your classes, above all on the hard ones?

>>> import backbones, probe
>>> b, d = backbones.load("clip-rn50"), probe.data.load("pets")
>>> f = probe.features.extract(b, d["train"])
>>> clf = probe.fit(f, method="mr2", l2=1.0)
>>> probe.evaluate(clf, probe.features.extract(b, d["test"]))["test"]["groups"]["hard"]

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from probe.system import interrupts

interrupts.guard()

__version__ = "0.1.0"

ROOMS = ("data", "evaluate", "features", "losses", "solve", "stats", "heads", "theory", "methods", "train")
FUNCTIONS = {"fit": "classifier", "load": "classifier", "ProbeClassifier": "classifier"}


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return getattr(import_module(f"probe.{FUNCTIONS[name]}"), name)
    if name in ROOMS:
        return import_module(f"probe.{name}")
    raise AttributeError(f"module 'probe' has no attribute {name!r}")
