"""Killed, repeated, or several at once: the entry ends the same, and no image is encoded without need."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from probe import features
from probe.features import extraction
from probe.system import atomic, locks
from tests.support import feature_world as world

SCRIPT = Path(world.__file__)


def start(cache, *launcher, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPT, cache], env=environment, stdout=subprocess.PIPE, text=True
    )


def finish(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    seen, total = zip(*(line.split() for line in out.splitlines()), strict=True)
    return sum(map(int, seen)), set(total)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The entry that an undisturbed run of the script writes."""
    root = tmp_path_factory.mktemp("calm")
    features.extract(world.backbone(), world.split(), cache=root, shard_rows=8, batch_size=4, progress=False)
    return world.contents(root)


def test_a_killed_extraction_resumes_where_it_stopped_and_ends_the_same(tmp_path, calm):
    process = start(tmp_path, DELAY="0.02")
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*/0*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (entry,) = tmp_path.iterdir()
    kept = {path.name: path.stat().st_mtime_ns for path in entry.glob("0*")}
    assert 3 <= len(kept) < 13
    assert not (entry / "manifest.json").exists()

    split = world.split()
    f = features.extract(world.backbone(), split, cache=tmp_path, shard_rows=8, batch_size=4, progress=False)
    assert not f.cached
    assert sorted(split._images.seen) == list(range(8 * len(kept), 100))
    assert all((entry / name).stat().st_mtime_ns == when for name, when in kept.items())
    assert world.contents(tmp_path) == calm


@pytest.mark.parametrize("without", ["", "locks"])
def test_two_runs_on_one_cache_end_with_the_same_entry(tmp_path, calm, without):
    runs = [start(tmp_path, DELAY="0.01", WITHOUT_LOCKS=without) for _ in range(2)]
    seen, totals = zip(*map(finish, runs), strict=True)
    assert world.contents(tmp_path) == calm
    assert len(set.union(*totals)) == 1
    assert sum(seen) == 100 or (without and sum(seen) <= 200)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_shard_that_is_replaced_while_it_is_opened(tmp_path, monkeypatch, damaged):
    """By the same bytes, as a run beside this one writes them, it is read anew; by others it is not believed,
    also if the sound file is back before anyone looks."""
    options = {"shard_rows": 32, "batch_size": 8, "progress": False}
    calm = features.extract(world.backbone(), world.split(), cache=tmp_path, **options).X.tensor().clone()
    shard = sorted(tmp_path.glob("*/00001-*"))[0]
    sound, mapped = shard.read_bytes(), extraction._mapped
    swaps = iter([sound] if not damaged else [sound[:-1] + bytes([sound[-1] ^ 1])])
    opened = []

    def replaced(path):
        if path != shard:
            return mapped(path)
        swap = next(swaps, None)
        if swap is not None:
            atomic.write_atomic(path, swap)
        opened.append(mapped(path))
        if swap is not None and damaged:
            atomic.write_atomic(path, sound)
        return opened[-1]

    monkeypatch.setattr(extraction, "_mapped", replaced)
    f = features.extract(world.backbone(), world.split(), cache=tmp_path, **options)
    assert len(opened) == 2  # what was opened first is not what was verified
    assert torch.equal(f.X.tensor(), calm)


def test_two_processes_under_torchrun_share_the_work_and_equal_one(tmp_path, calm):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    seen, totals = finish(start(tmp_path, *launcher, WITH_ACCELERATE="1", DELAY="0.01"))
    assert seen == 100
    assert len(totals) == 1
    assert world.contents(tmp_path) == calm


@pytest.fixture(params=["record locks", "links"])
def kind(request, monkeypatch):
    if request.param == "links":

        def unsupported(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(locks.fcntl, "lockf", unsupported)
    return request.param


TAKE = """
import errno, sys, time
from pathlib import Path
from probe.system import locks
def unsupported(*_):
    raise OSError(errno.ENOLCK, "No locks available")
if sys.argv[2] == "links":
    locks.fcntl.lockf = unsupported
claims = locks.FolderLocks(Path(sys.argv[1]))
print(claims.acquire(3), claims.acquire(4), flush=True)
time.sleep(60)
"""


def test_a_claim_excludes_others_and_dies_with_its_owner(tmp_path, kind):
    owner = subprocess.Popen([sys.executable, "-c", TAKE, tmp_path, kind], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "True True\n"
    with locks.FolderLocks(tmp_path) as claims:
        assert not claims.acquire(3)
        assert claims.acquire(5)
        owner.kill()
        owner.communicate()
        assert claims.acquire(3)
        assert claims.acquire(4)


def test_a_released_claim_can_be_taken_and_leaves_no_mark(tmp_path, kind):
    with locks.FolderLocks(tmp_path) as claims:
        assert claims.acquire(1)
        claims.release(1)
        assert claims.acquire(1)
    assert [path.name for path in tmp_path.iterdir() if path.name != locks.LOCK] == []


def test_an_owner_on_another_machine_is_believed_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    (tmp_path / ".lock-00001").symlink_to("1@elsewhere")
    (tmp_path / ".lock-00002").symlink_to(f"999999999@{socket.gethostname()}")
    (tmp_path / ".lock-00003").symlink_to("nonsense")
    with locks.FolderLocks(tmp_path) as claims:
        assert not claims.acquire(1)
        assert claims.acquire(2)
        assert claims.acquire(3)
        monkeypatch.setattr(locks, "STALE_SECONDS", -1.0)
        assert claims.acquire(1)


def test_without_any_kind_of_lock_everyone_works_on(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "lockf", unsupported)
    monkeypatch.setattr(Path, "symlink_to", unsupported)
    with locks.FolderLocks(tmp_path) as one, locks.FolderLocks(tmp_path) as two:
        assert one.acquire(0)
        assert two.acquire(0)
