"""Training by gradient steps: probing on cached features (`probe_sgd`) and fine-tuning (`finetune`).

What a recipe may say about it is `probe.recipe.train_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from probe.train.finetuning import FinetunedModel, finetune
    from probe.train.sgd import probe_sgd

__all__ = ["FinetunedModel", "finetune", "probe_sgd"]

if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "FinetunedModel": "probe.train.finetuning",
            "finetune": "probe.train.finetuning",
            "probe_sgd": "probe.train.sgd",
        },
    )
