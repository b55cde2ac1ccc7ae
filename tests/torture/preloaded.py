"""What almost every torture needs loaded, before processes are forked; nothing is computed here."""

from importlib import import_module

from backbones.torchvision_ops import ensure_torchvision
from probe import features
from torture.rows import rows

ensure_torchvision()  # before timm, which wants torchvision
for library in (
    *("torch", "timm", "accelerate", "sklearn.manifold", "scipy.stats", "sqlite3", "vl_convert", "PIL.Image"),
    *("backbones.loading", "backbones.timm", "probe.cli", "probe.compare", "probe.data.load_dataset"),
    *(
        "probe.data.sources.image_folder",
        "probe.evaluation.external",
        "probe.predict",
        "probe.run",
        "probe.report.runs",
    ),
    *("probe.report.html.comparison", "probe.report.text.comparison", "probe.report.text.run"),
    "probe.train.learning",
):
    import_module(library)
assert callable(features.extract)  # the function, loaded by its first use
rows()
