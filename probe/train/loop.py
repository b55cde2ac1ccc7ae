"""The one training loop: cached features or images, any method, any number of processes, stoppable anywhere.

What decides a result is a pure function of the seed and the position: the samples of a batch, their views,
dropout, the learning rate. A checkpoint is therefore a `TrainState`, without any generator, and the same
command after a kill resumes to the same bits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core import collectives
from probe.core.threads import free_threads
from probe.evaluation.metrics import score
from probe.methods.base import Method
from probe.recipe.train_settings import TrainConfig
from probe.system.progress import bar
from probe.train import class_pass, frequency, optim
from probe.train.checkpoint import Checkpoints
from probe.train.ema import WeightEMA
from probe.train.evaluate import embeddings, logits
from probe.train.inputs.batch import Batch
from probe.train.inputs.feed import Feed
from probe.train.inputs.loaders import SampleLoader
from probe.train.inputs.sampler import Sampler
from probe.train.log import FILE as LOG
from probe.train.log import Log
from probe.train.model.network import Network
from probe.train.parallel import accelerator as runtime
from probe.train.parallel import dtensor
from probe.train.parallel.dry_run import dry_run
from probe.train.signals import Stopped, StopRequest
from probe.train.stage import Stage
from probe.train.state import Progress, TrainState
from probe.train.step import Diverged, Objective, Step
from probe.train.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

SHOWN_EVERY = 0.1  # seconds between two updates of the progress bar


class Training:
    """A task, fixed machinery around it, and the `state` that changes; `run()` takes it to the end."""

    def __init__(
        self,
        task: Task,
        settings: TrainConfig,
        *,
        seed: int = 0,
        folder: Path | None = None,  # for checkpoints and log.jsonl; None: neither
        digest: str = "",  # of all that decides the result: a checkpoint of another one is refused
        show: bool = True,
        accelerator: Accelerator | None = None,
        device: torch.device | None = None,  # where it trains, without an accelerator; None: `auto`
        between_checkpoints: float = 0.0,  # seconds; shorter epochs do not save each of their ends
        search: Callable[[Training], dict[str, Any]] | None = None,  # finds the rate ("lr") before step 0
        about: dict[str, Any] | None = None,  # the log's first line
    ) -> None:
        self.task, self.settings, self.seed = task, settings, seed
        self.search, self.about, self.between_checkpoints = search, about, between_checkpoints
        self.accelerator = accelerator or runtime.accelerator(settings, folder, device)
        self.checkpoints = Checkpoints(folder, digest, self.accelerator)
        # Does a process hold a shard of every weight? Asked now: Accelerate says no once it has sharded.
        self.sharded: bool = self.accelerator.is_fsdp2
        self.show = show and self.rank == 0
        self.log = Log(folder / LOG if folder is not None and self.rank == 0 else None)
        self.stop = StopRequest()
        self.feed = Feed.of(settings, task.num_classes, seed, self.accelerator)
        self.given = task.objective(seed)
        self.objective = runtime.place(self.given, settings, self.accelerator)  # what is trained
        self.views  # noqa: B018 - views that these samples do not have are refused before anything is trained
        self.objective.train_mode(self.settings)
        fused = not self.sharded
        optimizer = optim.make(self.network, self.method, task.optimizer, settings, fused=fused)
        tried = None
        if settings.micro_batch == "auto" or (self.processes > 1 and not self.sharded):
            tried = dry_run(self, optimizer)
            self.feed.micro_batch = tried.micro_batch
        clip = None if settings.clip == "none" else settings.clip
        self.engine = runtime.engine(self.accelerator, self.objective, optimizer, clip=clip, dry_run=tried)
        ema = None if settings.ema is None else WeightEMA(self.network, settings.ema)
        self.state = TrainState(self.objective, self.engine, ema)  # after the processes have agreed on it
        self._last_step: Step | None = None  # the one that was made last, whose samples an error names
        self.log.track(self.accelerator, settings)

    @property
    def network(self) -> Network:
        """What is trained, on the device."""
        return self.objective.network

    @property
    def method(self) -> Method:
        return self.objective.method

    @property
    def views(self) -> tuple[str, ...]:
        """The kinds of random views that are drawn of each training sample in this stage."""
        return self.task.views(self.method)

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes

    @property
    def lr(self) -> float:
        """The peak learning rate: found by a search, given, or the optimiser's default."""
        found = self.state.progress.found
        if found is not None:
            return found["lr"]
        return self.settings.lr or optim.DEFAULTS[self.task.optimizer].lr

    # -- the loop ------------------------------------------------------------------------------------------

    @free_threads()  # a checkpoint's number comes before it
    def run(self) -> Progress:
        """Train from the last checkpoint, or the start, to the end; the network then has the kept weights."""
        stages = self.method.stages(self.task.epochs)
        with self.checkpoints.claimed(), self.stop:
            self._resume()
            self._find_lr()
            self.checkpoints.restart_clock()
            for number in range(self.state.position.stage, len(stages)):
                self._train_stage(number, stages[number])
        self._check_state()
        self.log.close()
        self.network.take(self.state.best or self.state.weights())
        self.network.eval()
        return self.state.progress

    def _find_lr(self) -> None:
        """Before step 0. What a search found is saved, so that it is not searched for again."""
        if self.search is not None and self.state.progress.found is None:
            found = self.state.progress.found = self.search(self)
            self.log.write({"step": 0, "search": found})
            self.save()

    def _train_stage(self, number: int, epochs: int) -> None:
        p = self.state.position
        if p.epoch == p.step == 0:
            self._check_state()  # as the stage before left it, which this one looks at
            self.method.begin_stage(number, self)
            class_pass.prepare(self, self.task.train)
        stage = Stage.of(self.settings, epochs, self.make_sampler(), self.lr)
        samples = len(stage.sampler.order(0))
        with bar("training", epochs * samples, "samples", show=self.show) as advance:
            advance((p.epoch * stage.steps + p.step) * samples // stage.steps)
            for epoch in range(p.epoch, epochs):
                self._train_epoch(stage, epoch, advance)
                p.next_epoch(last=epoch == epochs - 1)
                late = self.checkpoints.older_than(self.between_checkpoints)
                if any(collectives.largest(int(late), device=self.device)):
                    self.save()

    def _train_epoch(self, stage: Stage, epoch: int, advance: Callable[..., None]) -> None:
        """Batch after batch: the learning rate, a step (forward, loss, backward, update), the log."""
        p, progress = self.state.position, self.state.progress
        self.objective.train_mode(self.settings)
        self.method.start_epoch(epoch, stage.epochs)
        begin, shown, waiting = time.perf_counter(), 0.0, 0
        for step in self.steps(self.task.train, stage.sampler, p.epochs, p.step):
            lr = stage.schedule.lr(number := epoch * stage.steps + p.step)
            self.method.set_strength(stage.schedule.warmth(number, self.method.ramp))
            loss = self._step(step, lr)
            progress.loss_sum += loss
            now, waiting = time.perf_counter(), waiting + step.size
            row = {"step": p.steps, "epoch": p.epochs, "loss": loss, "lr": lr, "samples": step.size}
            self.log.write({**row, "seconds": now - begin})
            begin = now
            if now - shown > SHOWN_EVERY:
                advance(waiting, f"epoch {epoch + 1}/{stage.epochs}  loss {loss:.4f}")
                shown, waiting = now, 0
            self._pause()
        advance(waiting)
        self.method.end_epoch(epoch, self)
        frequency.measure(self, stage, epoch)
        self._end_epoch()

    def _step(self, step: Step, lr: float) -> float:
        """One optimiser step, as the method makes it (`Method.step`); returns the loss before it."""
        p = self.state.position
        optim.set_lr(self.engine.optimizer, lr)
        try:
            loss = self.move(step)
        except Diverged:
            self._check_state(self.state.parameter_fault)  # by the step before: this one is not to blame
            raise
        self._last_step = step
        if self.state.ema is not None:
            self.state.ema.update(self.network, p.steps)
        p.next_step()
        return loss

    def move(self, step: Step) -> float:
        """Move the weights, and what follows them; returns the loss before it."""
        loss = self.method.step(step)
        self.method.after_step(self.network)
        return loss

    def steps(self, data: SampleLoader, sampler: Sampler, epoch: int, first: int = 0) -> Iterator[Step]:
        """The steps of an epoch from number `first` on, each with its loaded batch."""
        for drawn in self.feed.batches(data, sampler, epoch, first, self.views):
            yield self.make_step(drawn.parts, drawn.weights, drawn.position, drawn.size)

    def make_step(
        self, batches: list[Batch], weights: list[float], position: tuple[int | str, ...], size: int
    ) -> Step:
        """A step on these micro-batches, of a joined batch of `size` samples."""
        return Step(batches, weights, self.engine, position, self.task.train.ids, size)

    def make_sampler(self, data: SampleLoader | None = None) -> Sampler:
        """What draws the batches of these samples; without `data`, of the training set."""
        return self.feed.sampler((data or self.task.train).labels, self.method)

    # -- what methods may ask for (`probe.methods.protocols.TrainingLike`) ---------------------------------

    @property
    def labels(self) -> NDArray[np.int64]:
        """The N labels of the training set."""
        return self.task.train.labels

    @property
    def groups(self) -> Tensor | None:
        """The N groups of the training set that the loss acts on; None: it acts on the classes."""
        return self.task.train.groups

    def training_logits(self) -> Tensor:
        """N x K logits of the training set (by averaged weights, where an average is kept)."""
        with self.state.averaged():
            return self.evaluate(self.task.train)

    def restart(self) -> None:
        """Give the network its weights at step 0; optimiser and average start again."""
        self.state.restart()

    def restart_head(self) -> None:
        """Go on with the kept weights and a classifier at class means; optimiser and average start again."""
        with self.state.averaged():
            seen = embeddings(self.objective, self.task.train, self.accelerator)
        kept = self.state.weights()
        self.state.restart({**kept, **self.task.head_at_means(seen, kept)})

    def evaluate(self, data: SampleLoader) -> Tensor:
        """N x K logits of the network as it is."""
        return logits(self.objective, data, self.accelerator)

    # -- ends of epochs, checkpoints, the end --------------------------------------------------------------

    def _end_epoch(self) -> None:
        p, progress = self.state.position, self.state.progress
        row: dict[str, Any] = {"epoch": p.epochs, "stage": p.stage, "step": p.steps}
        if self.method.uses_partners:
            row["partners"] = self.make_sampler().partners(p.epochs)
        row["loss"], progress.loss_sum = progress.loss_sum / max(1, p.step), 0.0
        if self.task.validation is not None:
            with self.state.averaged():
                row["validation"] = self.validate(self.task.validation)
            best = progress.best
            if best is None or best["stage"] < p.stage or row["validation"] > best["validation"]:
                progress.best = row
                if self.settings.keep == "best":
                    self.state.best = self.state.weights()
        progress.epochs.append(row)
        self.log.write(row)

    def validate(self, data: SampleLoader) -> float:
        """The task's metric on these samples, by the network as it is."""
        scores = self.evaluate(data)
        images = len(scores) // self.task.validation_views
        guess = scores.view(-1, images, scores.shape[1]).mean(dim=0).argmax(dim=1).numpy()
        return score(guess, np.asarray(data.labels)[:images], self.task.num_classes, self.task.metric)

    def release(self) -> Objective:
        """Network and method as they were given, with the weights of now, whole and on the CPU."""
        self.engine.close()
        if self.sharded:
            dtensor.load(self.given, dtensor.snapshot(self.objective.state_dict()))
            self.given.eval()
        return self.given.to("cpu").requires_grad_(False)

    def _pause(self) -> None:
        """Between two steps: stop if asked, save if it is time. All processes do the same."""
        late = self.checkpoints.older_than(60 * self.settings.checkpoint_minutes)
        received, due = collectives.largest(self.stop.signal, int(late), device=self.device)
        if received:
            where = self.save()
            if self.rank == 0:
                saved = f"; saved in {where}; the same command resumes from there" if where else ""
                print(f"stopped after step {self.state.position.steps}{saved}", file=sys.stderr)
            raise Stopped(128 + received)
        if due:
            self.save()

    def _check_state(self, fault: Callable[[], str | None] | None = None) -> None:
        """Before anything is kept or built on: an update can ruin weights whose loss was finite."""
        if self._last_step is not None:
            found = (fault or self.state.fault)()
            if found is not None:
                raise self._last_step.diverged_after(found) from None

    def save(self) -> Path | None:
        """A checkpoint of now, where there is a folder for it; every process calls it."""
        self._check_state()
        self.log.flush()
        return self.checkpoints.save(self.state, micro_batch=self.feed.micro_batch, logged=self.log.count)

    def _resume(self) -> None:
        """Load the last checkpoint, if there is one; without one, write the first line of the log."""
        logged = self.checkpoints.resume(self.state)
        self.log.rewind(logged or 0)
        if logged is None:
            tried = {"micro_batch": self.feed.micro_batch} if self.settings.micro_batch == "auto" else {}
            if self.about or tried:
                self.log.write({"step": 0, **(self.about or {}), **tried})
        elif self.show:
            print(f"resuming after step {self.state.position.steps}", file=sys.stderr)
