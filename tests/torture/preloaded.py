"""What almost every torture needs loaded, before processes are forked; nothing is computed here."""

from importlib import import_module

from backbones.torchvision_ops import ensure_torchvision
from probe import features
from tests.torture.rows import rows

ensure_torchvision()  # before timm, which wants torchvision
for library in (
    *("torch", "timm", "accelerate", "sklearn.manifold", "scipy.stats", "sqlite3", "vl_convert", "PIL.Image"),
    *(
        "backbones.load_backbone",
        "backbones.families.timm_models",
        "probe.cli",
        "probe.runs.compare",
        "probe.data.load_dataset",
    ),
    *(
        "probe.data.sources.image_folder",
        "probe.evaluation.external",
        "probe.runs.external",
        "probe.runs.predict",
        "probe.runs.run",
        "probe.runs.report",
    ),
    *("probe.report.html.comparison", "probe.report.text.comparison", "probe.report.text.run"),
    "probe.runs.seeds",
):
    import_module(library)
assert callable(features.extract)  # the function, loaded by its first use
rows()
