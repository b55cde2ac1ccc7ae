"""The one training loop: cached features or images, any method, any number of processes, stoppable anywhere.

What decides a result is a pure function of the seed and the position: the samples of a batch, their views,
dropout, the learning rate. A checkpoint is therefore weights, memories and a position, and the same command
after a kill goes on to the same bits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.core import collectives
from probe.errors import UserError
from probe.evaluation.metrics import score
from probe.methods.base import Method
from probe.recipe.train_settings import TrainConfig
from probe.system.progress import bar
from probe.train import checkpoint, optim, schedule
from probe.train import state as snapshot
from probe.train.ema import Average
from probe.train.evaluate import logits
from probe.train.inputs import augment
from probe.train.inputs.loaders import Feed
from probe.train.inputs.sampler import Sampler
from probe.train.log import FILE as LOG
from probe.train.log import Log
from probe.train.model import batchnorm
from probe.train.model.network import Network
from probe.train.parallel import accelerator as runtime
from probe.train.parallel import dry_run, dtensor
from probe.train.seeding import seed as stream
from probe.train.seeding import set_seed
from probe.train.signals import Stopped, StopRequest
from probe.train.state import Position, Progress
from probe.train.step import Diverged, Objective, Window

BATCH = 256  # samples of a step, where nobody said


@dataclass(frozen=True)
class Task:
    """What is trained on what."""

    network: Network
    method: Method
    feed: Feed
    num_classes: int
    optimizer: str  # a key of `optim.DEFAULTS`
    epochs: int
    held: Feed | None = None  # rows that validate; never trained on
    metric: str = "accuracy"


class Training:
    """A task, the machinery around it, and its position; `run()` takes it to the end."""

    def __init__(
        self,
        task: Task,
        settings: TrainConfig,
        *,
        seed: int = 0,
        folder: Path | None = None,  # for checkpoints and log.jsonl; None: neither
        digest: str = "",  # of all that decides the result: a checkpoint of another one is refused
        show: bool = True,
        accelerator: Any = None,
        between_checkpoints: float = 0.0,  # seconds; shorter epochs do not save each of their ends
        search: Callable[[Training], dict[str, Any]] | None = None,  # finds the rate ("lr") before step 0
        about: dict[str, Any] | None = None,  # the log's first line
    ) -> None:
        self.task, self.settings, self.seed, self.folder, self.digest = task, settings, seed, folder, digest
        self.network, self.method, self.feed = task.network, task.method, task.feed
        self.accelerator = accelerator or runtime.accelerator(settings, folder)
        self.sharded: bool = self.accelerator.is_fsdp2
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.processes: int = self.accelerator.num_processes
        self.position, self.progress = Position(), Progress()
        self._last: Window | None = None  # of which step's samples a message speaks
        self.best: dict[str, Tensor] = {}
        self.mix = augment.mixer(settings.augment, task.num_classes)
        self.show, self.between_checkpoints = show and self.rank == 0, between_checkpoints
        self.search, self.about = search, about
        self.batch_size = settings.batch_size or BATCH
        self.log = Log(folder / LOG if folder is not None and self.rank == 0 else None)
        self._prepare()

    def _prepare(self) -> None:
        s = self.settings
        if s.batch_norm != "frozen":
            batchnorm.join(self.network)
        self.whole = Objective(self.network, self.method)
        objective = self.whole if self.sharded else self.whole.to(self.device)
        if self.sharded:
            # What was given stays whole, on the CPU, for `release`; a copy of it is split.
            dtensor.agree(objective, self.device)
            objective = deepcopy(objective)
            self.network, self.method = objective.network, objective.method
        if s.channels_last:
            objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if s.compile:
            self.network.encoder.compile()
        self._train_mode()
        self.micro_batch = s.micro_batch if isinstance(s.micro_batch, int) else None
        optimizer = optim.make(self.network, self.method, self.task.optimizer, s, fused=not self.sharded)
        self.rate = s.lr or optim.DEFAULTS[self.task.optimizer].lr
        found = None
        if s.micro_batch == "auto" or (self.processes > 1 and not self.sharded):
            found = dry_run.rehearse(self, objective, optimizer)
            self.micro_batch = found.micro_batch
        clip = None if s.clip == "none" else s.clip
        self.engine = runtime.engine(self.accelerator, objective, optimizer, clip=clip, rehearsed=found)
        self.bare = objective
        self.average = None if s.ema is None else Average(self.network, s.ema)
        self.start = self.network.snapshot()  # after the processes have agreed on it
        if s.trackers:
            self.accelerator.init_trackers(
                "probe", config=s.model_dump(exclude={"augment", "wise", "trackers"})
            )
            self.log.tracker = self.accelerator if self.rank == 0 else None

    def _train_mode(self) -> None:
        self.network.train()
        self.method.train()
        if self.settings.batch_norm == "frozen":
            batchnorm.freeze(self.network)

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Train from the last checkpoint, or the start, to the end; the network then has the kept weights."""
        stages = self.method.stages(self.task.epochs)
        with checkpoint.claimed(self.folder, self.rank, self.device), StopRequest() as self.stop:
            if not self._resume():
                self._begin()
            self._find_rate()
            self._saved = time.monotonic()
            for stage in range(self.position.stage, len(stages)):
                self._run_stage(stage, stages[stage])
        self._check(*snapshot.FAULTS)
        self.log.flush()
        for tracker in self.accelerator.trackers:  # `end_training` would end the world of processes as well
            tracker.finish()
        self._keep()
        return self.progress

    def _begin(self) -> None:
        """The first line of the log."""
        tried = {"micro_batch": self.micro_batch} if self.settings.micro_batch == "auto" else {}
        if self.about or tried:
            self.log.write({"step": 0, **(self.about or {}), **tried})

    def _find_rate(self) -> None:
        """Before step 0. What a search found is saved, so that it is not searched for again."""
        if self.search is not None and self.progress.found is None:
            found = self.progress.found = self.search(self)
            self.log.write({"step": 0, "search": found})
            self.save()
        if self.progress.found is not None:
            self.rate = self.progress.found["lr"]

    def _run_stage(self, stage: int, epochs: int) -> None:
        if self.position.epoch == self.position.step == 0:
            self._check(*snapshot.FAULTS)  # of the stage before, which this one looks at
            self.method.begin_stage(stage, self)
        self.sampler = self.sampler_of()
        per_epoch = self.per_epoch = self.sampler.steps
        self.total, self.warmup = epochs * per_epoch, round((self.settings.warmup_epochs or 0) * per_epoch)
        done = self.position.epoch * per_epoch + self.position.step
        size = len(self.sampler.order(0))
        with bar("training", epochs * size, "samples", show=self.show) as advance:
            advance(done * size // per_epoch)
            for epoch in range(self.position.epoch, epochs):
                self._run_epoch(epoch, epochs, advance)
                last = epoch == epochs - 1
                p = self.position
                p.epoch, p.step, p.epochs = (0 if last else epoch + 1), 0, p.epochs + 1
                p.stage = stage + 1 if last else stage
                late = self.folder is not None and self._late(self.between_checkpoints)
                if any(collectives.largest(int(late), device=self.device)):
                    self.save()

    def _run_epoch(self, epoch: int, epochs: int, advance: Any) -> None:
        p = self.position
        self._train_mode()
        self.method.start_epoch(epoch, epochs)
        begin, shown, waiting = time.perf_counter(), 0.0, 0
        for window, size in self.windows(self.feed, self.sampler, p.epochs, p.step):
            rate = self.rate * schedule.factor(epoch * self.per_epoch + p.step, self.total, self.warmup)
            optim.set_rate(self.engine.optimizer, rate)
            loss = self._step(window)
            if self.average is not None:
                self.average.update(self.network, p.steps)
            p.step, p.steps = p.step + 1, p.steps + 1
            self.progress.loss_sum += loss
            now, waiting = time.perf_counter(), waiting + size
            row = {"step": p.steps, "epoch": p.epochs, "loss": loss, "lr": rate, "samples": size}
            self.log.write({**row, "seconds": now - begin})
            begin = now
            if now - shown > 0.1:
                advance(waiting, f"epoch {epoch + 1}/{epochs}  loss {loss:.4f}")
                shown, waiting = now, 0
            self._pause()
        advance(waiting)
        self.method.end_epoch(epoch, self)
        self._end_epoch(epoch)

    def _step(self, window: Window) -> float:
        try:
            loss = self.method.step(window)
        except Diverged:
            self._check(snapshot.ruined)  # by the step before: then this one's samples did nothing
            raise
        self._last = window
        return loss

    def windows(
        self, feed: Feed, sampler: Sampler, epoch: int, first: int = 0
    ) -> Iterator[tuple[Window, int]]:
        """An epoch from its step `first` on, a window an optimiser step."""
        batches = sampler.epoch(epoch)[first:]
        shares = [sampler.parts(batch, self.rank) for batch in batches]
        loaded = feed.training(epoch, [part for share in shares for part in share], self.method.views)
        for step, (batch, share) in enumerate(zip(batches, shares, strict=True), first):
            place = (self.seed, epoch, step, self.rank)
            parts = []
            for number in range(len(share)):
                part = next(loaded).to(self.device)
                if self.mix is not None:
                    set_seed(stream(*place, "mix", number), self.device)
                    part = self.mix(part)
                parts.append(part)
            yield self.window(parts, sampler.weights(len(batch)), place), len(batch)

    def window(self, parts: list[Any], weights: list[float], place: tuple[int | str, ...]) -> Window:
        return Window(parts, weights, self.engine, place, self.feed.ids)

    def sampler_of(self, feed: Feed | None = None) -> Sampler:
        return Sampler(
            kind=self.method.sampler or self.settings.sampler,
            labels=np.asarray((feed or self.feed).labels),
            batch_size=self.batch_size,
            seed=self.seed,
            processes=self.processes,
            micro_batch=self.micro_batch,
            repeats=self.method.repeats(),
        )

    # -- what methods may ask for --------------------------------------------------------------------------

    def logits(self, feed: Feed) -> Tensor:
        """N x K scores of the network (averaged, where an average is kept) on every row of a feed."""
        with nullcontext() if self.average is None else self.average.used_by(self.network):
            return self.evaluate(feed)

    def evaluate(self, feed: Feed) -> Tensor:
        """N x K scores of the network as it is."""
        return logits(self.bare, feed, rank=self.rank, processes=self.processes, device=self.device)

    def restart(self, other: Mapping[str, Tensor] | None = None) -> None:
        """Give the network its weights at step 0, or some `other` ones; optimiser and average forget."""
        self.network.take({**self.start, **(other or {})})
        self.engine.optimizer.state.clear()
        self.engine.weights_changed()
        if self.average is not None:
            self.average.restart(self.network)

    # -- ends of epochs, checkpoints, the end --------------------------------------------------------------

    def _end_epoch(self, epoch: int) -> None:
        p = self.position
        row: dict[str, Any] = {"epoch": p.epochs, "stage": p.stage, "step": p.steps}
        row["loss"], self.progress.loss_sum = self.progress.loss_sum / max(1, p.step), 0.0
        if self.task.held is not None:
            y = np.asarray(self.task.held.labels)
            guess = self.logits(self.task.held).argmax(dim=1).numpy()
            row["validation"] = score(guess, y, self.task.num_classes, self.task.metric)
            best = self.progress.best
            if best is None or best["stage"] < p.stage or row["validation"] > best["validation"]:
                self.progress.best = row
                if self.settings.keep == "best":
                    self.best = self._current()
        self.progress.epochs.append(row)
        self.log.write(row)

    def _current(self) -> dict[str, Tensor]:
        """A copy of the weights that would be used now."""
        with nullcontext() if self.average is None else self.average.used_by(self.network):
            return self.network.snapshot()

    def _keep(self) -> None:
        """Leave the weights in the network that the recipe asks for."""
        self.network.take(self.best or self._current())
        self.network.eval()

    def release(self) -> Objective:
        """Network and method as they were given, with the weights of now, whole and on the CPU."""
        self.engine.close()
        if self.sharded:
            dtensor.load(self.whole, dtensor.snapshot(self.bare.state_dict()))
            self.whole.eval()
        return self.whole.to("cpu").requires_grad_(False)

    def _pause(self) -> None:
        """Between two steps: stop if asked, save if it is time. All processes do the same."""
        late = self.folder is not None and self._late(60 * self.settings.checkpoint_minutes)
        received, due = collectives.largest(self.stop.signal, int(late), device=self.device)
        if received:
            where = self.save()
            if self.rank == 0:
                saved = f"; saved in {where}; the same command goes on from there" if where else ""
                print(f"stopped after step {self.position.steps}{saved}", file=sys.stderr)
            raise Stopped(128 + received)
        if due:
            self.save()

    def _late(self, seconds: float) -> bool:
        """By this process's clock, which is no other's."""
        return time.monotonic() - self._saved >= seconds

    def _check(self, *questions: Callable[[Training], str | None]) -> None:
        """Before anything is kept or built on: an update can ruin weights whose loss was a number."""
        for question in questions:
            found = None if self._last is None else question(self)
            if self._last is not None and found is not None:
                raise self._last.diverged_after(found) from None

    def save(self) -> Path | None:
        """A checkpoint of now, where there is a folder for it; every process calls it."""
        path = None
        self._check(*snapshot.FAULTS)
        if self.folder is not None and (self.rank == 0 or self.engine.parted):
            self.log.flush()
            state = snapshot.of(self)
            if self.rank == 0:
                path = checkpoint.save(self.folder / "checkpoints", state, step=self.position.steps)
        self._saved = time.monotonic()
        self.accelerator.wait_for_everyone()
        return path

    def _resume(self) -> bool:
        """Take up the last checkpoint, if there is one."""
        state = None if self.folder is None else checkpoint.latest(self.folder / "checkpoints", self.digest)
        step = -1 if state is None else state.about["position"]["steps"]
        last, least = collectives.largest(step, -step, device=self.device)
        if last != -least:
            raise UserError(
                f"not every process finds the checkpoint of step {last} in {self.folder}; "
                "give all machines the same folder"
            )
        if state is None:
            self.log.rewind(0)
            return False
        snapshot.restore(self, state)
        self.log.rewind(state.about["logged"])
        if self.show:
            print(f"going on after step {self.position.steps}", file=sys.stderr)
        return True
