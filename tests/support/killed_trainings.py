"""Trainings that are killed, stopped or starved; run in processes of their own."""

from __future__ import annotations

import os
import resource
import signal
import sys
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch

from probe.errors import UserError
from probe.train import checkpoint
from probe.train.loop import Training
from tests.support.training_world import feature_training, image_training, tiny_vit, weights, wobbly_encoder

for library in ("accelerate", "timm"):  # loaded once, before processes are forked
    import_module(library)

EVERY_STEP = 1e-9  # minutes
FULL = 8_000  # bytes: room for the log and not for a checkpoint


def features(folder: Path | None, *, often: bool = False, name: str = "mr2", **options: Any) -> Training:
    """Dropout, batch-norm, class statistics, Adam, averaged weights, a best epoch: all that can be lost."""
    return feature_training(
        name,
        folder=folder,
        encoder=wobbly_encoder(),
        held=True,
        keep="best",
        ema=0.9,
        checkpoint_minutes=EVERY_STEP if often else 60,
        **{"optimizer": "adamw", "lr": 0.01, **options},
    )


def images(folder: Path | None, models: Path, *, often: bool = False) -> Training:
    """Random views, mixing, stochastic depth, loader processes."""
    from probe.train.model import encoder_options

    backbone = tiny_vit(models)
    encoder_options.drop_paths(backbone.encoder, 0.3)
    mixing = {"policy": "randaugment", "erase": "cutout", "mix": "both"}
    minutes = EVERY_STEP if often else 60
    return image_training(
        backbone, folder=folder, epochs=2, augment=mixing, workers=1, checkpoint_minutes=minutes
    )


SCENES = {"features": features, "images": images}


def killed_after(step: int, scene: str, *args: Any, **options: Any) -> None:
    """kill -9 in the middle of a step: its gradient is there, its update is not."""
    torch.set_num_threads(1)
    training = SCENES[scene](*args, **options)
    make = training.make_step

    def lethal(*parts: Any) -> Any:
        made = make(*parts)
        if training.state.position.steps == step:
            made.gradients()
            for loader in active_children():
                (training.checkpoints.folder / "loader").write_text(str(loader.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    training.make_step = lethal  # type: ignore[method-assign]
    training.run()


def killed_while_saving(number: int, half: bool, *args: Any, **options: Any) -> None:
    """kill -9 when the `number`-th checkpoint is half written, or written and not yet in its place."""
    torch.set_num_threads(1)
    write, seen = checkpoint._write_tensors, []

    def lethal(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        write(path, tensors)
        seen.append(path)
        if len(seen) == number:
            if half:
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint._write_tensors = lethal
    features(*args, **options).run()


def signalled_after(step: int, number: int, said: Path, *args: Any, **options: Any) -> None:
    """SIGTERM or Ctrl-C in the middle of a step."""
    torch.set_num_threads(1)
    sys.stderr = said.open("w")
    training = features(*args, **options)
    make = training.make_step

    def asked(*parts: Any) -> Any:
        if training.state.position.steps == step:
            os.kill(os.getpid(), number)
        return make(*parts)

    training.make_step = asked  # type: ignore[method-assign]
    training.run()


def out_of_space(said: Path, folder: Path) -> None:
    """The disk takes the first checkpoint and refuses the second."""
    torch.set_num_threads(1)
    save = checkpoint.save

    def starving(place: Path, content: checkpoint.Checkpoint, *, step: int) -> Path:
        path = save(place, content, step=step)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))
        return path

    checkpoint.save = starving
    try:
        features(folder).run()
    except UserError as error:
        said.write_text(str(error))


def refused(said: Path, folder: Path) -> None:
    """Begins to train where somebody else does."""
    try:
        features(folder).run()
    except UserError as error:
        said.write_text(str(error))


def finish(training: Training) -> dict[str, torch.Tensor]:
    training.run()
    return weights(training)
