"""What the source itself promises: no pickle, no remote code, safe YAML, no shell, no extraction."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import backbones

ROOT = Path(__file__).parent.parent
SOURCES = [path for room in ("probe", "backbones") for path in sorted((ROOT / room).rglob("*.py"))]
# Calls that run what they read, build a shell, or write wherever an archive says.
FORBIDDEN = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "joblib.load",
    "dill.load",
    "shelve.open",
    "marshal.load",
    "marshal.loads",
    "numpy.load",
    "np.load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "shutil.unpack_archive",
    "tarfile.open",
    "yaml.full_load",
    "yaml.unsafe_load",
    "torch.hub.load",
    "torch.jit.load",
    "urllib.request.urlretrieve",
    "ssl._create_unverified_context",
}
EXTRACTING = {"extract", "extractall"}  # methods of archives


def calls(path):
    """Every call of a file: its dotted name and its keywords."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}, node.lineno


ALL_CALLS = [(path, *call) for path in SOURCES for call in calls(path)]


def test_nothing_that_is_read_can_run_code():
    found = [f"{p.name}:{line} {name}" for p, name, _, line in ALL_CALLS if name in FORBIDDEN]
    assert found == []


def test_torch_reads_tensors_only():
    loads = [keywords for _, name, keywords, _ in ALL_CALLS if name == "torch.load"]
    assert loads
    assert all(keywords.get("weights_only") == "True" for keywords in loads)


def test_yaml_is_read_by_a_safe_loader_alone():
    from yaml import SafeLoader

    from probe.recipe import parse

    loads = [(path.name, keywords) for path, name, keywords, _ in ALL_CALLS if name.startswith("yaml.load")]
    assert loads == [("parse.py", {"Loader": "_Loader"})]
    assert issubclass(parse._Loader, SafeLoader)


def test_no_remote_code_is_trusted():
    trusts = [kw["trust_remote_code"] for *_, kw, _ in ALL_CALLS if "trust_remote_code" in kw]
    assert trusts
    assert set(trusts) == {"False"}
    assert not [p for p in SOURCES if "trust_remote_code=True" in p.read_text(encoding="utf-8")]


def test_no_shell_is_started():
    assert not [f"{p.name}:{line}" for p, _, kw, line in ALL_CALLS if kw.get("shell", "False") != "False"]


def test_archives_are_looked_into_and_never_extracted():
    archives = [p.name for p in SOURCES if "zipfile" in p.read_text() or "tarfile" in p.read_text()]
    assert sorted(archives) == ["state_dict.py", "tar_shards.py"]
    looked_into = [p for p in SOURCES if p.name in archives]
    assert not [name for p in looked_into for name, *_ in calls(p) if name.split(".")[-1] in EXTRACTING]


def test_only_one_place_downloads_and_it_checks_where_from():
    openers = {p.name for p, name, *_ in ALL_CALLS if name.endswith(("urlopen", "build_opener"))}
    assert openers == {"hub.py", "sources.py"}  # hub.py asks whether a server answers, and reads nothing
    assert "check_secure(url)" in (ROOT / "backbones" / "sources.py").read_text(encoding="utf-8")


# -- dependencies ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distribution(requirement):
    name = requirement.split(";")[0]
    for sign in "<>=!~[":
        name = name.split(sign)[0]
    return name.strip().lower().replace("_", "-")


def imported():
    """Top-level modules that the product imports, wherever in a file."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.split(".")[0])
    return found - {"probe", "backbones"} - sys.stdlib_module_names


def test_every_dependency_is_used_and_everything_used_is_declared(project):
    declared = {distribution(requirement) for requirement in project["dependencies"]}
    weights = {name for name in declared if name.endswith("-pytorch-model")}  # files, and no code of theirs
    providers = packages_distributions()
    used = {
        name.lower().replace("_", "-") for module in imported() for name in providers.get(module, [module])
    }
    extras = {distribution(r) for extra in project["optional-dependencies"].values() for r in extra}
    optional = {*extras, "wandb", "mlflow"}  # trackers that a recipe may name
    assert declared - weights - used == set()
    assert used - declared - optional == set()
    assert {f"package: {name}" for name in weights} <= {str(spec.source) for spec in backbones.specs()}


def test_the_lock_holds_every_dependency_with_checksums_and_names_no_server(project):
    lock = (ROOT / "requirements.lock").read_text()
    blocks = [block for block in lock.replace("\\\n", "").splitlines() if not block.startswith("#")]
    locked = {block.split("==")[0] for block in blocks}
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    assert {distribution(requirement) for requirement in wanted} <= locked
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in lock
    assert "index-url" not in lock


def test_the_lock_and_the_constraints_name_the_same_versions():
    def versions(file):
        lines = (line.split(" ")[0] for line in (ROOT / file).read_text().splitlines() if "==" in line)
        return {
            name.lower().replace("_", "-"): v
            for name, _, v in (line.split("+")[0].partition("==") for line in lines)
        }

    constraints, lock = versions("constraints.txt"), versions("requirements.lock")
    assert {n: v for n, v in lock.items() if n in constraints} == {
        n: v for n, v in constraints.items() if n in lock
    }
    assert set(lock) - set(constraints) <= {"setuptools"}


# -- reading -----------------------------------------------------------------------------------------------

# Where bytes are read without `backbones.reading`, which refuses pipes, devices and absurd sizes; and why.
READERS = {
    ("page.py", "read_text"): "the package's own files",
    ("folder.py", "read_bytes"): "weights that this run has just written",
    ("checksums.py", "path.open"): "in blocks, after `reading.regular`",
    ("state_dict.py", "path.open"): "nine bytes, after `reading.regular`",
    ("sources.py", "path.open"): "in blocks, what was downloaded or installed",
    ("checkpoint.py", "path.open"): "to flush what was just written",
    ("parquet_reader.py", "path.open"): "by place, after the state of the file was compared",
    ("tar_shards.py", "path.open"): "by place, after `reading.regular` or the state of the file was compared",
    ("threads.py", "read_text"): "the kernel's quota of this process",
    ("predict.py", "path.open"): "written, not read",
    ("path_tables.py", "path.open"): "its first line, after `reading.regular`",
    ("safe_parquet.py", "pq.ParquetFile"): "after `reading.regular`, within limits",
}


def test_files_are_read_in_one_place_that_refuses_what_has_no_end():
    found = set()
    for path, name, _, line in ALL_CALLS:
        last = name.split(".")[-1]
        if last in ("read_text", "read_bytes"):
            found.add((path.name, last))
        elif name.endswith("path.open"):
            found.add((path.name, "path.open"))
        elif last in ("ParquetFile", "read_table", "ParquetDataset"):
            found.add((path.name, name))
        assert name != "json.load", f"{path.name}:{line}: read it with backbones.reading first"
    assert found <= {*READERS, ("log.py", "path.open")}, found - set(READERS)  # a log is appended to
