"""A shell completes the names that options take, without loading anything heavy."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from probe.cli import main


def completed(*words):
    """What bash would be offered for the last of these words."""
    asked = {"COMP_WORDS": " ".join(("probe", *words)), "COMP_CWORD": str(len(words))}
    shell = {**os.environ, **asked, "_PROBE_COMPLETE": "bash_complete"}
    code = """
import sys
sys.argv = ["probe"]
from probe.cli import main
try:
    main(prog_name="probe")
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], env=shell, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_names_are_completed():
    assert completed("run", "--backbone", "effnet-lite0+clip-rn5") == ["effnet-lite0+clip-rn50"]
    assert completed("run", "--data", "lett") == ["letters"]
    assert set(completed("run", "--method", "la")) == {"la", "la-posthoc", "label-smoothing"}
    assert completed("compare", "--backbones", "mae-vit-l") == ["mae-vit-l16"]
    assert completed("compare", "--methods", "sphere") == ["sphereface"]
    assert completed("compare", "--data", "lett") == ["letters"]
    assert completed("improve", "--with", "effnet-lite1") == ["effnet-lite1"]
    assert "mr2/table1-cifar100/fairdro" in completed("compare", "--recipes", "mr2/table1-cifar100/")
    assert "mr2/table1-cifar100/fairdro" in completed("run", "mr2/table1-cifar100/")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell):
    said = CliRunner().invoke(main, ["completion", shell])
    assert said.exit_code == 0
    assert f"_PROBE_COMPLETE={shell}_complete" in said.output
