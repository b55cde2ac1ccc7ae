"""The command in bad surroundings: one line and a sensible exit code, never a traceback."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

PROBE = (sys.executable, "-m", "probe.cli")
DATA = ("--backbone", "cifar-resnet20", "--l2", "1", "--method", "erm", "features.workers=0")
SGD = ("--solver", "sgd", "train.epochs=1", "train.lr=0.1")  # trains by Accelerate
STRAYS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PROBE_PROCESSES")


def probe_process(*words, env=None, drop=(), **options):
    """`probe WORDS` as a real process."""
    kept = {k: v for k, v in os.environ.items() if k not in (*STRAYS, *drop)}
    return subprocess.run(
        [*PROBE, *map(str, words)],
        env={**kept, "OMP_NUM_THREADS": "1", **(env or {})},
        **{"capture_output": True, "text": True, "timeout": 120, "errors": "replace", **options},
    )


def one_line(stderr, code=2, *, done):
    assert "Traceback" not in stderr, stderr
    assert stderr.count("\n") == 1, stderr
    assert done.returncode == code, (done.returncode, stderr)
    return stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two classes of odd names, and a filled cache."""
    root = tmp_path_factory.mktemp("surroundings")
    for split, start in (("train", 0), ("test", 100)):
        for k, name in enumerate(("caf\u00e9 \U0001f600", "plain")):
            folder = root / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (8, 8), (start + 10 * i, 120 * k, 7)).save(folder / f"{i}.png")
    done = probe_process(*extract_words(root))
    assert done.returncode == 0, done.stderr
    return root


def extract_words(world):
    return ("extract", *DATA[:2], DATA[-1], "--data", world / "data", "--cache", world / "cache")


def run_words(world, out):
    return ("run", *DATA, "--data", world / "data", "--cache", world / "cache", "--out", out)


@pytest.mark.parametrize(
    "left",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "2", "RANK": "1"},
        {"LOCAL_RANK": "3"},
        {"RANK": "x", "WORLD_SIZE": "", "LOCAL_RANK": "0"},
        {
            "RANK": "2",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        },
    ],
)
def test_a_stray_rank_is_ignored_in_one_line_and_the_run_is_written(world, tmp_path, left):
    done = probe_process(*run_words(world, tmp_path), env=left)
    line = one_line(done.stderr, 0, done=done)
    assert "in the environment is ignored" in line
    assert "RANK=" in line or "WORLD_SIZE=" in line
    assert len(list(tmp_path.glob("*/result.json"))) == 1
    assert "saved: " in done.stdout


def test_a_whole_set_without_its_launcher_says_who_writes(world):
    left = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    done = probe_process(*extract_words(world), env=left)
    assert "process 1 of 2" in one_line(done.stderr, 0, done=done)
    assert "process 0 writes" in done.stderr


def test_a_meeting_place_alone_is_no_world(world):
    done = probe_process(*extract_words(world), env={"MASTER_ADDR": "host", "MASTER_PORT": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("cached") == 2


@pytest.mark.parametrize("size", ["x", "", "-1", "9" * 5000])
def test_a_stray_size_of_the_machine_is_no_traceback(world, tmp_path, size):
    env = {"LOCAL_WORLD_SIZE": size, "PROBE_CACHE": str(tmp_path)}
    done = probe_process(*extract_words(world)[:-2], env=env)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


MPI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": number for name, number in (("RANK", "1"), ("SIZE", "2"))}


@pytest.mark.parametrize("left", [MPI, OPEN_MPI])
def test_the_numbers_of_mpi_start_no_training_on_several_processes(world, tmp_path, left):
    done = probe_process(*run_words(world, tmp_path), *SGD, env=left)
    assert "in the environment is ignored" in one_line(done.stderr, 0, done=done)
    assert len(list(tmp_path.glob("*/result.json"))) == 1


def test_a_cluster_that_says_one_of_one_is_not_worth_a_line(world):
    done = probe_process(*extract_words(world), env={"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_that_accelerate_does_not_know_is_one_line(world, tmp_path):
    done = probe_process(*run_words(world, tmp_path), *SGD, env={"ACCELERATE_USE_CPU": "maybe"})
    assert "ACCELERATE_*" in one_line(done.stderr, done=done)


def test_a_locale_without_the_letters_of_a_class_is_told_the_way_out(world):
    """The name is a good one: to rename the folder would be bad advice."""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = probe_process(*extract_words(world), env=env)
    assert "set PYTHONUTF8=1" in one_line(done.stderr, done=done)


HOMELESS = """
import pwd, sys
def unknown(user):
    raise KeyError(user)
pwd.getpwuid = unknown
from probe.cli import main
sys.exit(main())
"""


def test_no_home_is_one_line_with_the_way_out():
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "PROBE_CACHE", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", HOMELESS, "cache", "ls"], env=kept, capture_output=True, text=True
    )
    assert "PROBE_CACHE" in one_line(done.stderr, done=done)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("cache", "ls"), {"PROBE_CACHE": "~nobody-of-that-name"}),
        (("run", "--backbone", "effnet-lite0", "--data", "~nobody-of-that-name/x"), {}),
        (
            ("run", "--backbone", "effnet-lite0", "--data", "digits", "--weights", "~nobody-of-that-name/x"),
            {},
        ),
        (("run", "--backbone", "hf:~nobody-of-that-name/x", "--data", "digits"), {}),
    ],
)
def test_a_home_that_is_not_known_is_one_line(words, env, tmp_path):
    done = probe_process(*words, env={"PROBE_CACHE": str(tmp_path), **env})
    assert "no home folder is known" in one_line(done.stderr, done=done)


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LANG": "C"},
    ],
)
def test_a_terminal_of_few_letters_shows_the_rest_written_out(env):
    done = probe_process("backbones", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    missing = probe_process("report", "caf\u00e9-\U0001f600", env=env)
    assert "caf" in one_line(missing.stderr, done=missing)


def test_a_run_on_odd_class_names_is_shown_in_ascii(world, tmp_path):
    done = probe_process(*run_words(world, tmp_path), env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "plain" in done.stdout
    assert "caf\\xe9 \\U0001f600" in done.stdout


@pytest.mark.parametrize("words", [("backbones",), ("backbones", "--json"), ("--help",), ("run", "--help")])
def test_a_full_disk_under_standard_output_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        done = probe_process(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert "cannot write to standard output: No space left" in one_line(done.stderr, done=done)


def test_a_full_disk_under_the_table_of_a_run_is_one_line_and_the_run_is_there(world, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = probe_process(
            *run_words(world, tmp_path), capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert "standard output" in one_line(done.stderr, done=done)
    assert list(tmp_path.glob("*/result.json"))


def test_a_full_disk_under_standard_error_keeps_the_exit_code():
    with Path("/dev/full").open("w") as full:
        done = probe_process("run", "--data", "nothing", capture_output=False, stdout=full, stderr=full)
    assert done.returncode == 2


@pytest.mark.parametrize(("closed", "code"), [((0, 1, 2), 0)])
def test_closed_streams_harm_no_file(world, tmp_path, closed, code):
    def close():
        for number in closed:
            os.close(number)

    done = probe_process(*run_words(world, tmp_path), preexec_fn=close)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    for file in (world / "cache").rglob("*.sqlite"):
        assert b"saved: " not in file.read_bytes()
    (run,) = tmp_path.glob("*/result.json")
    assert run.read_text().endswith("}")


@pytest.mark.parametrize("words", [("backbones",), ("run", "--data", "digits", "--backbone", "effnet-lite0")])
@pytest.mark.parametrize("after", [0.0, 0.03, 0.1, 0.3, 0.8, 1.6])
def test_ctrl_c_at_the_very_start_is_one_line(words, after, tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", ENTRY, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PROBE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        # a shell that runs the tests in the background has its children ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert started.stdout.readline() == "begun\n"
        time.sleep(after)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    finally:
        started.kill()
    if (started.returncode, err) in ((0, ""), (-signal.SIGINT, "")):  # it was over, or all but
        return
    assert started.returncode == 130, (started.returncode, err)
    assert re.fullmatch(r"stopped.*\n", err), err


# What the installed script does, with a word when the package has begun to be imported.
ENTRY = """
import sys
sys.argv[0] = "probe"
class Begun:
    def find_spec(self, name, *_):
        if name == "click":
            sys.meta_path.remove(self)
            print("begun", flush=True)
sys.meta_path.insert(0, Begun())
from probe.cli import main
sys.exit(main())
"""
