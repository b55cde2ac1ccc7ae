"""Nothing that is given to make is ever run: not by make, not by the shell, whatever it looks like."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"
# The variables that reach each command, by the flag that carries them.
TARGETS = {
    "probe": {"--backbone": "BACKBONE", "--data": "DATA", "--method": "METHOD", "--seeds": "SEEDS"},
    "finetune": {"--backbone": "BACKBONE", "--data": "DATA", "--gpus": "GPUS", "--method": "METHOD"},
    "compare": {"--backbones": "BACKBONES", "--data": "DATA", "--methods": "METHODS", "--seeds": "SEEDS"},
}
GIVEN = {name for flags in TARGETS.values() for name in flags.values()} | {"ARGS", "PYTHON"}
HOSTILE = [
    "$(touch mark)",
    "$(shell touch mark)",
    "$$(touch mark)",
    "`touch mark`",
    "; touch mark;",
    "' ; touch mark ; '",
    '" ; touch mark ; "',
    "a b\tc",
    "line\ntouch mark\n",
    "| touch mark && touch mark #",
    "$(error no) ${DATA} $@ $< %",
    "-x --help \\",
    "erm drw(ldam) sam(mr2, rho=0.1)",
]


@pytest.fixture
def place(tmp_path):
    """A folder in which `probe` writes down its words, one a NUL."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    probe = tmp_path / "bin" / "probe"
    probe.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" > words\n")
    probe.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "ready"):
        (tmp_path / name).touch()
    return tmp_path


def make(place, target, given, *, by_environment=False):
    words = [f"{name}={value}" for name, value in given.items()]
    # `make test` gives its own variables to everything it starts, this make too
    outside = {name: value for name, value in os.environ.items() if name not in GIVEN}
    environment = {**outside, **(given if by_environment else {})}
    places = ["BIN=bin", "READY=ready", "-f", str(MAKEFILE)]
    command = ["make", *places, target, *([] if by_environment else words)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return (place / "words").read_text().split("\0")[:-1]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("target", TARGETS)
def test_every_name_arrives_as_it_was_given_and_nothing_is_run(place, target, value):
    flags = TARGETS[target]
    words = make(place, target, dict.fromkeys(flags.values(), value))
    assert {flag: words[words.index(flag) + 1] for flag in flags} == dict.fromkeys(flags, value)
    assert not (place / "mark").exists()


@pytest.mark.parametrize("value", HOSTILE[:5])
def test_names_from_the_environment_are_as_harmless(place, value):
    words = make(place, "probe", {"DATA": value, "METHOD": value}, by_environment=True)
    assert words.count(value) == 2
    assert not (place / "mark").exists()


def test_args_are_split_into_words_and_not_run(place):
    given = "--out 'my runs' seeds=$(touch mark) ; `touch mark` | $(shell touch mark)"
    words = make(place, "probe", {"ARGS": given})
    assert words[-len(shlex.split(given)) :] == shlex.split(given)
    assert "my runs" in words
    assert not (place / "mark").exists()


def test_python_is_one_program_and_no_line_for_the_shell(place):
    (place / "ready").unlink()
    (place / "bin" / "python").unlink()
    command = ["make", "BIN=bin", "READY=ready", "-f", str(MAKEFILE), "setup", "PYTHON=true; touch mark;"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode != 0
    assert not (place / "mark").exists()


def test_a_dry_run_runs_nothing_either(place):
    command = [
        "make",
        "-n",
        "BIN=bin",
        "READY=ready",
        "-f",
        str(MAKEFILE),
        "probe",
        "DATA=$(shell touch mark)",
    ]
    subprocess.run([*command, "ARGS=$(shell touch mark)"], cwd=place, capture_output=True, check=True)
    assert not (place / "mark").exists()
    assert not (place / "words").exists()


def test_defaults_still_hold(place):
    words = make(place, "compare", {"BACKBONE": "clip-rn50"})
    assert words[words.index("--backbones") + 1] == "clip-rn50"
    assert "--method" not in make(place, "probe", {"DATA": "digits"})


@pytest.mark.parametrize(
    ("given", "data", "method"),
    [
        ({}, "digits-lt", "la"),
        ({"BACKBONE": "clip-rn50", "SEEDS": "5"}, "digits-lt", "la"),
        ({"DATA": "pets"}, "pets", None),
        ({"METHOD": "mr2"}, "digits", "mr2"),
        ({"ARGS": "--solver knn"}, "digits", None),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_the_long_tail_is_for_a_first_run_that_names_nothing_else(place, given, data, method, by_environment):
    words = make(place, "probe", given, by_environment=by_environment)
    assert words[words.index("--data") + 1] == data
    assert (words[words.index("--method") + 1] if "--method" in words else None) == method


def test_other_commands_keep_the_balanced_digits(place):
    words = {target: make(place, target, {}) for target in ("finetune", "compare", "improve")}
    assert {target: said[said.index("--data") + 1] for target, said in words.items()} == dict.fromkeys(
        words, "digits"
    )


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("GPU=2", "GPUS"), ("DATAS=x", "DATA"), ("METHDO=erm", "METHOD"), ("data=x", "DATA"), ("EPOCHS=3", None),
     ("DATAS=$(shell touch mark)", "DATA"), ("X=`touch mark`", None)],
)  # fmt: skip
@pytest.mark.parametrize("target", ["probe", "setup"])
def test_a_variable_that_does_not_exist_stops_in_one_line_that_names_the_nearest(place, target, slip, meant):
    command = ["make", "BIN=bin", "READY=ready", "-f", str(MAKEFILE), target, "DATA=digits", slip]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"there is no variable {slip.partition('=')[0]}" in done.stderr
    assert ("did you mean" in done.stderr) is (meant is not None)
    assert meant is None or f"did you mean {meant}?" in done.stderr
    assert not (place / "words").exists()
    assert not (place / "mark").exists()


def test_other_peoples_variables_in_the_environment_are_no_slips(place):
    assert make(place, "probe", {"GPU": "2", "DATAS": "x"}, by_environment=True)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("probe", "-e .[plots,letters]"),
        ("improve", "-e .[plots,letters]"),
        ("test", "-e .[plots,letters,test,lint]"),
    ],
)
def test_what_is_installed_is_what_the_command_needs(place, target, wanted):
    """No test, lint or DeepSpeed packages for somebody who wants a probe."""
    (place / "ready").unlink()
    (place / "bin" / "python").unlink()
    python = place / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@" >> installed\n')
    python.chmod(0o755)
    command = ["make", "BIN=bin", "READY=ready", "DEV=dev", "-f", str(MAKEFILE), target]
    subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    lines = [line for line in (place / "installed").read_text().splitlines() if "pip install" in line]
    assert lines[-1].endswith(wanted)
    assert len(lines) == (1 if target != "test" else 2)
    assert (place / "dev").exists() is (target == "test")


def test_evidence_gets_what_was_given_and_not_the_defaults_of_other_commands(place):
    def said(*given):
        places = ["BIN=bin", "READY=ready", "-f", str(MAKEFILE)]
        names = {"SEEDS", "MINUTES", "ONLY", *GIVEN}
        outside = {name: value for name, value in os.environ.items() if name not in names}
        command = ["make", "--dry-run", *places, "evidence", *given]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=outside, check=True)
        return done.stdout

    assert "--seeds" not in said()
    assert "--minutes" not in said("MINUTES=")
    given = said("SEEDS=2", "MINUTES=$(touch mark)", "ONLY=frozen")
    assert '--seeds "$SEEDS" --minutes "$MINUTES"' in given
    assert '--only "$ONLY"' in given
    assert not (place / "mark").exists()
