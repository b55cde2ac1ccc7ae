"""Starting the same command on several processes: Accelerate's launcher on GPUs, torch's on CPUs.

`accelerate launch --cpu --num_processes 2` silently starts one process, so CPUs go through
torch.distributed.run. Every process checks that as many were started as were asked for.

Several machines: the same command on each, with --machines, --machine-rank and --address; what else a cluster
needs goes into an Accelerate configuration file (`accelerate config`), given with --accelerate-config.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from probe.errors import UserError
from probe.system.world import ASKED, inside, leave_with_parent, say_who_writes, usable_cores
from probe.train.parallel import fsdp_config

GO_ON = "so it was stopped; the same command resumes from the last checkpoint"
LEAST_ON_CPU = 2  # two processes may share a single core, so that everything can be tried anywhere


@dataclass(frozen=True)
class World:
    """What to start."""

    processes: int  # on this machine
    machines: int = 1
    machine_rank: int = 0
    address: str = "127.0.0.1"  # of machine 0
    port: int = 29500
    config: Path | None = None  # an Accelerate configuration file

    @property
    def total(self) -> int:
        return self.processes * self.machines


def follow() -> None:
    """In a process that a launcher started: save and stop when the launcher is gone, even by kill -9."""
    if inside():
        leave_with_parent(signal.SIGTERM)
    say_who_writes()


def check_world() -> None:
    """Raise when the launcher started another number of processes than it was asked for."""
    asked, found = os.environ.get(ASKED), os.environ.get("WORLD_SIZE", "1")
    if asked is not None and asked != found:
        raise UserError(f"{asked} processes were asked for, but {found} were started")


def launch(world: World, words: Sequence[str]) -> int:
    """Run `probe WORDS...` on every process of `world`; returns the exit code."""
    import torch

    gpus = torch.cuda.device_count()
    cores = usable_cores()
    limit = gpus or max(LEAST_ON_CPU, cores)
    if world.processes > limit:
        have = f"{gpus} GPUs" if gpus else f"no GPU and {cores} cores"
        raise UserError(
            f"cannot start {world.processes} processes: this machine has {have}; use at most {limit}"
        )
    if world.config is not None:  # Accelerate's launcher would need many lines to say what is wrong with it
        fsdp_config.check_file(world.config, world.total)
    os.environ[ASKED] = str(world.total)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // world.processes)))
    command = ["-m", "probe.cli", *words]
    return _on_gpus(world, command) if gpus else _on_cpus(world, command)


def _on_gpus(world: World, command: list[str]) -> int:
    # The module, not the `accelerate` script: that one imports every library it could ever estimate.
    flags = ["--num_processes", str(world.total), "--num_machines", str(world.machines)]
    flags += ["--machine_rank", str(world.machine_rank)]
    if world.machines > 1:
        flags += ["--main_process_ip", world.address, "--main_process_port", str(world.port)]
    if world.config is not None:
        flags = ["--config_file", str(world.config), *flags, *fsdp_config.flags(world.config)]
    else:
        flags += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        flags += ["--multi_gpu"] if world.total > 1 else []
    launcher = subprocess.Popen(
        [sys.executable, "-m", "accelerate.commands.launch", *flags, *command],
        preexec_fn=partial(leave_with_parent, signal.SIGTERM) if os.name == "posix" else None,
    )
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        launcher.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = launcher.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + received[0] if received else code


def _on_cpus(world: World, command: list[str]) -> int:
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    if world.config is not None:
        os.environ.update(fsdp_config.environment(world.config))
    flags = ["--nproc_per_node", str(world.processes)]
    if world.machines > 1:
        flags += ["--nnodes", str(world.machines), "--node_rank", str(world.machine_rank)]
        flags += ["--master_addr", world.address, "--master_port", str(world.port)]
    else:
        flags += ["--standalone"]
    logging.disable(logging.ERROR)  # the process itself says what went wrong, in one line
    try:
        run(get_args_parser().parse_args([*flags, *command]))
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        number, first = failed.get_first_failure()
        if first.exitcode >= 0:
            return first.exitcode
        name = signal.Signals(-first.exitcode).name
        print(f"error: process {number} died ({name}; is there enough memory?), {GO_ON}", file=sys.stderr)
        return 128 - first.exitcode
    return 0
