"""The `probe` command in processes of their own, each for the price of a fork."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.torture.runner import context

Before = Callable[[], None]  # done in the process before the command starts, to prepare its misfortune
HANGS = 120.0  # seconds after which a command that is not disturbed will never end


class Child:
    """`probe WORDS...`, at the head of a process group of its own, its words caught."""

    def __init__(
        self,
        words: list[str],
        said: Path,
        *,
        environment: Mapping[str, str] | None = None,
        before: Before | None = None,
    ) -> None:
        said.mkdir(parents=True, exist_ok=True)
        self.words, self.said = words, said
        environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        self._process = context().Process(target=_run, args=(words, said, environment, before))
        self._process.start()
        self.pid: int = self._process.pid

    def kill(self) -> bool:
        """SIGKILL to the whole group; False if the command had ended by itself."""
        running = self._process.is_alive()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # over, or not yet the head of a group
            if self._process.is_alive():
                os.kill(self.pid, signal.SIGKILL)
        self._process.join()
        return running and self._process.exitcode == -signal.SIGKILL

    def ended(self, seconds: float = HANGS) -> int:
        """Its exit code; one that does not end is killed, and the promise is broken."""
        self._process.join(seconds)
        if self._process.is_alive():
            self.kill()
            raise AssertionError(f"`probe {self.words[0]}` has no end after {seconds:.0f} s")
        return self._process.exitcode

    @property
    def out(self) -> str:
        return (self.said / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.said / "err").read_text(errors="replace")


def _run(words: list[str], said: Path, environment: Mapping[str, str], before: Before | None) -> None:
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    sys.argv = ["probe", *words]
    import torch

    from probe.cli import main

    torch.set_num_threads(1)
    if before is not None:
        before()
    try:
        main(words)
    finally:
        atexit._run_exitfuncs()  # as an interpreter does, and a forked process does not


def _end_with_parent() -> None:
    """A torture that is itself stopped leaves nobody behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def succeed(words: list[str], said: Path, **options: object) -> Child:
    """Run a command to its good end."""
    child = Child(words, said, **options)  # type: ignore[arg-type]
    code = child.ended()
    assert code == 0, f"`probe {words[0]}` ended with {code}: {last_line(child.err)}"
    return child


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def ranks(processes: int) -> list[dict[str, str]]:
    """The environments of a world of processes on this machine, as a launcher sets them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PROBE_PROCESSES": str(processes),
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def wait_until(true: Callable[[], bool], seconds: float = HANGS) -> None:
    """Until something is so; the promise is broken if it never is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain"
        time.sleep(0.01)
