"""Hub ids: from a server, from the hub's cache, or one clear line within seconds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pyarrow.parquet as pq
import pytest

import probe.data
from probe.data import catalogue
from probe.data.request import Request
from probe.data.sources import hub
from probe.errors import UserError
from tests.support.tiny_datasets import write_parquet

COMMIT = "c" * 40


def load(
    name: str, tmp_path: Path, options: dict | None = None, within: float = 50, **environment: str
) -> subprocess.CompletedProcess:
    """In its own process: the hub's client reads its settings when it is imported."""
    code = (
        "import json, sys, time, huggingface_hub, probe.data, probe.data.sources.hub\n"
        "from probe.errors import UserError\n"
        "began = time.monotonic()\n"
        "try:\n"
        "    d = probe.data.load(sys.argv[1], **json.loads(sys.argv[2]))\n"
        "    split = d['train']\n"
        "    print(d, d.source, d.class_names, split.ids[0], split[1][0].size, len(split.fingerprint))\n"
        "except UserError as error:\n"
        "    assert time.monotonic() - began < float(sys.argv[3]), 'too late'\n"
        "    sys.exit(f'UserError: {error}')\n"
    )
    settings = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    settings |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    command = [sys.executable, "-c", code, name, json.dumps(options or {}), str(within)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=settings, cwd=tmp_path)


def write_repository(root: Path) -> Path:
    write_parquet(root / "data/train-00000-of-00002.parquet", [0, 1, 0])
    write_parquet(root / "data/train-00001-of-00002.parquet", [1, 0, 1], seed=10)
    write_parquet(root / "data/test-00000-of-00001.parquet", [0, 1], seed=20)
    write_parquet(root / "data/contrast-00000-of-00001.parquet", [0, 1], seed=30)  # a split nobody asked for
    return root


@pytest.fixture
def server(tmp_path):
    """A hub with one repository, and another that has parquet files in its converted revision only."""
    root = write_repository(tmp_path / "served")
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.split("?")[0]
            if "/tree/" in path:
                below = path.split("/tree/")[1].partition("/")[2]
                inside = [
                    f for f in sorted(root.rglob("*")) if str(f.parent.relative_to(root)) == (below or ".")
                ]
                self.answer_about(inside)
            elif path.startswith(("/api/datasets/someone/pics", "/api/datasets/someone/script")):
                converted = "convert" in path
                files = [str(f.relative_to(root)) for f in sorted(root.rglob("*")) if f.is_file()]
                if "script" in path and not converted:
                    files = ["script.py"]
                info = {"id": path.split("/api/datasets/")[1], "sha": COMMIT, "tags": [], "private": False}
                self.answer(json.dumps({**info, "siblings": [{"rfilename": f} for f in files]}).encode())
            elif "/resolve/" in path:
                file = root / path.split("/resolve/")[1].replace("refs/convert", "refs").split("/", 1)[1]
                if not file.is_file():
                    self.answer(b"{}", {"X-Error-Code": "EntryNotFound"}, 404)
                    return
                data = file.read_bytes()
                self.answer(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
            else:
                self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, 404 if path != "/" else 200)

        do_HEAD = do_GET

        def do_POST(self) -> None:  # what older clients ask about single files
            asked.append(self.path)
            given = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.answer_about([f for f in map(root.joinpath, given["paths"]) if f.exists()])

        def answer_about(self, files: list[Path]) -> None:
            rows = [
                {
                    "type": "directory" if f.is_dir() else "file",
                    "path": str(f.relative_to(root)),
                    "size": f.stat().st_size,
                    "oid": "0" * 40,
                }
                for f in files
                if "script" not in self.path
            ]
            self.answer(json.dumps(rows).encode())

        def answer(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", asked
    http.shutdown()


def test_a_repository_is_downloaded_by_split_and_then_needs_no_network(tmp_path, server):
    address, asked = server
    first = load("someone/pics", tmp_path, HF_ENDPOINT=address)
    assert first.returncode == 0, first.stderr
    assert "train 6, test 2" in first.stdout
    assert (
        f"someone/pics@{COMMIT} ('cat', 'dog') data/train-00000-of-00002.parquet:0 (12, 9) 64" in first.stdout
    )
    assert not any("contrast" in path for path in asked)
    later = load("someone/pics", tmp_path, HF_HUB_OFFLINE="1")
    assert later.stdout == first.stdout, later.stderr


def test_a_repository_of_scripts_is_read_from_its_converted_copy(tmp_path, server):
    result = load("someone/script", tmp_path, HF_ENDPOINT=server[0])
    assert result.returncode == 0, result.stderr
    assert "train 6, test 2" in result.stdout


def test_a_repository_that_is_not_there_is_named(tmp_path, server):
    result = load("someone/nothing", tmp_path, HF_ENDPOINT=server[0])
    assert "UserError: there is no folder someone/nothing here, and http://127.0.0.1:" in result.stderr
    assert "has no public data set someone/nothing" in result.stderr
    assert "DATA=path" in result.stderr


@pytest.mark.parametrize("name", ["pets", "someone/pics"])
def test_an_unreachable_hub_is_said_within_five_seconds(tmp_path, name):
    result = load(name, tmp_path, within=5, HF_ENDPOINT="http://127.0.0.1:9")
    assert result.stderr.startswith("UserError"), result.stderr
    assert result.stderr.count("\n") == 1
    assert {"pets": "timm/oxford-iiit-pet"}.get(name, name) in result.stderr
    assert "DATA=path" in result.stderr


def test_a_hub_that_never_answers_is_said_within_five_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = load("food101", tmp_path, within=5, HF_ENDPOINT=address)
    assert result.stderr.startswith("UserError: the data set ethz/food101"), result.stderr


def snapshot_in(tmp_path: Path, repository: str) -> Path:
    return tmp_path / f"hf/hub/datasets--{repository.replace('/', '--')}/snapshots" / COMMIT


@pytest.mark.parametrize(
    "missing",
    ["data/train-00001-of-00002.parquet", "plain/train/0001.parquet", "plain/validation/0000.parquet"],
)
def test_a_half_downloaded_repository_is_not_taken_for_a_whole_one(tmp_path, server, missing):
    address, name = server[0], "someone/pics"
    if missing.startswith("plain"):
        shutil.rmtree(tmp_path / "served/data")
        for file, labels in {
            "train/0000": [0, 1],
            "train/0001": [1],
            "validation/0000": [0],
            "test/0000": [1, 0],
        }.items():
            write_parquet(tmp_path / f"served/plain/{file}.parquet", labels)
    first = load(name, tmp_path, HF_ENDPOINT=address)
    assert first.returncode == 0, first.stderr
    assert load(name, tmp_path, HF_HUB_OFFLINE="1").stdout == first.stdout
    (snapshot_in(tmp_path, name) / missing).unlink()
    offline = load(name, tmp_path, HF_HUB_OFFLINE="1")
    assert "is not known to be complete in the hub's cache" in offline.stderr
    assert load(name, tmp_path, HF_ENDPOINT=address).stdout == first.stdout


@pytest.mark.parametrize("list_", [None, "half a", "{}"])
def test_a_cache_without_a_list_of_its_files_is_not_trusted_and_is_named(tmp_path, server, list_):
    name = "someone/pics"
    assert load(name, tmp_path, HF_ENDPOINT=server[0]).returncode == 0
    (kept,) = Path(os.environ["PROBE_CACHE"]).rglob(f"{COMMIT}.json")
    kept.unlink() if list_ is None else kept.write_text(list_)
    result = load(name, tmp_path, HF_HUB_OFFLINE="1")
    assert f"not known to be complete in the hub's cache ({snapshot_in(tmp_path, name)}" in result.stderr


def test_a_registered_data_set_is_known_to_be_whole_by_its_names_alone(tmp_path):
    ask = Request.of(catalogue.find("pets"))

    def whole(*files: str) -> bool:
        for file in files:
            write_parquet(tmp_path / file, [0, 1])
        return hub._whole(tmp_path, "timm/oxford-iiit-pet", ask) is not None

    assert not whole("data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet")
    assert whole("data/train-00001-of-00002.parquet")
    (tmp_path / "data/test-00000-of-00001.parquet").rename(tmp_path / "data/test.parquet")
    assert not whole()


README = """---
configs:
- config_name: small
  data_files:
  - split: train
    path: data/train-00000-of-00002.parquet
  - split: heldout
    path: data/test-*
- config_name: whole
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
dataset_info:
- config_name: small
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:
          '0': owl
          '1': emu
---
"""


def test_a_readme_names_configurations_splits_and_classes(tmp_path, server):
    (tmp_path / "served/README.md").write_text(README)
    for file in (tmp_path / "served/data").iterdir():
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata({}), file)  # its class names stand in the README alone
    several = load("someone/pics", tmp_path, HF_ENDPOINT=server[0])
    assert "the data set someone/pics has several configurations (small, whole)" in several.stderr
    assert "data.config=NAME" in several.stderr
    options = {"splits": {"test": "heldout"}}
    first = load("someone/pics:small", tmp_path, options, HF_ENDPOINT=server[0])
    assert "train 3, test 2" in first.stdout, first.stderr
    assert "('owl', 'emu')" in first.stdout
    assert load("someone/pics:small", tmp_path, options, HF_HUB_OFFLINE="1").stdout == first.stdout
    unknown = load("someone/pics:smal", tmp_path, HF_ENDPOINT=server[0])
    assert unknown.stderr.startswith("UserError")


def test_a_cache_that_another_program_filled_is_read_offline(tmp_path):
    """Laid out as the hub's client lays it out: blobs, and links to them in a snapshot."""
    repository = tmp_path / "hf/hub/datasets--someone--pics"
    splits = "".join(f"  - name: {name}\n    num_examples: {n}\n" for name, n in (("train", 6), ("test", 2)))
    told = f"---\ndataset_info:\n  splits:\n{splits}---\n"
    source = write_repository(tmp_path / "there")
    (source / "README.md").write_text(told)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    for file in [f for f in source.rglob("*") if f.is_file()]:
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        link = repository / "snapshots" / COMMIT / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    found = load("someone/pics", tmp_path, HF_HUB_OFFLINE="1")
    assert "train 6, test 2" in found.stdout, found.stderr
    (repository / "snapshots" / COMMIT / "data/test-00000-of-00001.parquet").unlink()
    lacking = load("someone/pics", tmp_path, HF_HUB_OFFLINE="1")
    assert "is not known to be complete" in lacking.stderr  # and no test images are cut from train


def test_a_readme_that_names_other_places_is_refused(tmp_path):
    root = write_repository(tmp_path / "a")
    for place in ("https://example.org/x.parquet", "../b/*.parquet", "/etc/*"):
        (root / "README.md").write_text(
            f"---\nconfigs:\n- config_name: default\n  data_files: {place}\n---\n"
        )
        with pytest.raises(UserError, match="not below the folder"):
            probe.data.load(root)
