"""The wheel, installed away from the repository, does what the repository does."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import ROOT

SOURCES = ("probe", "backbones", "recipes", "pyproject.toml", "setup.py", "README.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")


def call(*words, **options):
    return subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True, **options
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The bin folder of a venv that holds the wheel; its dependencies are those of this environment."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copyfile(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", place, source)
    shutil.rmtree(source)
    call(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    (wheel,) = place.glob("mr2_probe-*.whl")
    python = place / "venv" / "bin" / "python"
    call(*pip, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel)
    # Only now, so that pip did not see what this environment calls mr2-probe. A .pth file inside the folder
    # that it names is not read, so an editable install there stays out of sight.
    found = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    Path(found, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # A page needs no chart engine.
    Path(found, "vl_convert.py").write_text('raise ImportError("not here")')
    return python.parent


@pytest.fixture
def away(tmp_path):
    """Options of a process that knows nothing of the repository."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {"cwd": tmp_path, "env": {**kept, "PROBE_CACHE": str(tmp_path / "cache")}}


def test_the_wheel_holds_recipes_and_what_a_page_needs(installed, away):
    code = "import probe, backbones; print(probe.__file__); print(*dir(probe))"
    where, names = call(installed / "python", "-c", code, **away).stdout.splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert {"load", "fit", "evaluate", "ProbeClassifier", "data", "losses"} <= set(names.split())
    recipes = json.loads(call(installed / "probe", "recipes", "--json", **away).stdout)
    assert len({row["name"] for row in recipes}) > 100
    assert "letters" in call(installed / "python", "-m", "probe", "datasets", **away).stdout


def test_the_wheel_probes_predicts_and_exports(installed, away, colours, tmp_path):
    probe = (installed / "python", "-m", "probe")
    words = ("--data", colours, "--backbone", "effnet-lite0", "--image-size", "32", "--l2", "1")
    call(*probe, "run", *words, **away)
    (run,) = (tmp_path / "runs").glob("effnet-lite0-*")
    page = (run / "report.html").read_text()
    assert "vegaEmbed" in page
    assert len(page) > 500_000  # the library is inside
    refused = subprocess.run([*map(str, probe), "report", str(run), "--plots"], capture_output=True, **away)
    assert refused.returncode == 2
    assert b"pip install 'mr2-probe[plots]'" in refused.stderr
    image = next((colours / "test" / "red").glob("*.png"))
    said = call(*probe, "predict", run, image, **away).stdout
    assert "red" in said
    assert "% of the time" in said
    call(*probe, "export", run, "model", "--to", "timm", **away)
    assert (tmp_path / "model" / "model.safetensors").is_file()
