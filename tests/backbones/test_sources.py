"""Weights come whole, checked and without running code; what is out of reach is said at once."""

from __future__ import annotations

import functools
import hashlib
import http.server
import pickle
import socket
import sys
import threading
import time
import zipfile
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import pytest
import torch

import backbones
from backbones import catalogue, hub
from backbones.errors import UserError
from backbones.sources import Hub, Package, Url, download
from backbones.state_dict import read_state

CLOSED = "http://127.0.0.1:9"  # the discard port, where nothing listens


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty hub cache, an empty torch cache and an endpoint that is out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("clip-rn50", "open_clip_model.safetensors .*timm/resnet50_clip.openai"),
        ("mae-vit-b16", "model.safetensors .*timm/vit_base_patch16_224.mae"),
        ("timm:resnet18.a1_in1k", "timm/resnet18.a1_in1k"),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"),
        ("hf:facebook/dinov2-base", "config.json of facebook/dinov2-base"),
    ],
)
def test_without_network_the_missing_file_and_the_way_out_are_told_within_seconds(no_network, name, wanted):
    start = time.monotonic()
    ways_out = r"--weights PATH \(weights=PATH in Python\)"
    with pytest.raises(UserError, match=f"{wanted}.*, and cannot reach {CLOSED}.*{ways_out}"):
        backbones.load(name)
    assert time.monotonic() - start < 5


def test_a_url_without_network_is_told_within_seconds(no_network, monkeypatch):
    start = time.monotonic()
    with pytest.raises(UserError, match=f"cannot reach {CLOSED}/moco.pth.tar.*weights=PATH"):
        download(f"{CLOSED}/moco.pth.tar")
    assert time.monotonic() - start < 5
    assert list(no_network.rglob("*")) == []


def test_a_server_that_accepts_and_never_answers_does_not_hold_us(no_network, monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(UserError, match="cannot reach"):
            backbones.load("resnet50")
        assert time.monotonic() - start < 5


def test_a_name_server_that_never_answers_does_not_hold_us(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(3600))
    start = time.monotonic()
    assert not hub.reachable("http://example.invalid", seconds=0.5)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("how", ["environment", "constant"])
def test_offline_mode_is_respected(no_network, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "reachable", lambda url: pytest.fail("the network was asked"))
    with pytest.raises(UserError, match=r"the hub's cache lacks .*, and HF_HUB_OFFLINE is set.*weights=PATH"):
        backbones.load("resnet50")


def of_the_client(name: str) -> Exception:
    """An exception of the HTTP library that the hub's client uses, whichever that is."""
    http = huggingface_hub.errors.HfHubHTTPError.__mro__[1].__module__
    return getattr(sys.modules[http], name)("The read operation timed out")


def test_a_download_that_times_out_is_one_line_and_a_mistake_of_ours_is_not_hidden(no_network, monkeypatch):
    failures = [of_the_client("ReadTimeout"), ConnectionResetError("reset by peer"), RuntimeError("ours")]
    monkeypatch.setattr(hub, "reachable", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: raising(failures[0]))
    assert not isinstance(failures[0], OSError)
    for words in ("The read operation timed out", "reset by peer"):
        with pytest.raises(UserError, match=f"cannot download model.safetensors .*{words}; .*--weights PATH"):
            backbones.load("resnet50")
        failures.pop(0)
    with pytest.raises(RuntimeError, match="ours"):
        backbones.load("resnet50")


def raising(error: Exception):
    raise error


def test_what_the_hub_has_cached_needs_no_network(no_network):
    snapshot = no_network / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    refs = no_network / "hub" / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    (snapshot / "pytorch_model.bin").write_bytes(b"weights")
    found = Hub("some/model", ("model.safetensors", "pytorch_model.bin")).fetch()
    assert found.read_bytes() == b"weights"


class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A real web server on this machine, and a fresh torch cache."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_checkpoint_is_downloaded_once_and_checked_each_time(site, moco_checkpoint, monkeypatch):
    folder, address = site
    (folder / "moco.pth.tar").symlink_to(moco_checkpoint.path)
    md5 = hashlib.md5(moco_checkpoint.path.read_bytes(), usedforsecurity=False).hexdigest()
    row = catalogue.find("mocov2-rn50")
    monkeypatch.setitem(
        catalogue._by_name,
        row.name,
        catalogue.Spec(**{**row.__dict__, "source": Url(f"{address}/moco.pth.tar", f"md5:{md5[:8]}")}),
    )
    first = backbones.load("mocov2-rn50")
    (folder / "moco.pth.tar").unlink()
    assert backbones.load("mocov2-rn50").fingerprint == first.fingerprint
    kept = Path(first.source)
    assert [path.name for path in kept.parent.iterdir()] == ["moco.pth.tar"]
    kept.write_bytes(b"damaged")
    with pytest.raises(UserError, match=f"damaged or another file: its md5 starts with .*, not {md5[:8]}"):
        backbones.load("mocov2-rn50")


def test_a_download_with_a_wrong_checksum_or_that_is_missing_leaves_nothing(site, tmp_path):
    folder, address = site
    (folder / "w.pth").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="not 12345678"):
        download(f"{address}/w.pth", "sha256:12345678")
    with pytest.raises(UserError, match=r"cannot download .*/none.pth .*404"):
        download(f"{address}/none.pth")
    assert [path for path in (tmp_path / "torch").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "url", ["http://example.invalid/w.pth", "ftp://example.invalid/w.pth", "file:///etc/passwd"]
)
def test_nothing_is_fetched_but_over_https(no_network, monkeypatch, url):
    with pytest.raises(UserError, match="not https"):
        download(url)
    monkeypatch.setenv("HF_ENDPOINT", url)
    with pytest.raises(UserError, match="not https"):
        hub.endpoint()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Sends everybody to a place where the line is open, or does not say how much there is."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.send_response(200 if self.path == "/endless.pth" else 302)
        if self.path != "/endless.pth":
            self.send_header("Location", "http://example.invalid/w.pth")
        self.end_headers()
        self.wfile.write(b"some bytes")

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_redirect_to_an_open_line_is_not_followed(elsewhere, no_network, monkeypatch):
    monkeypatch.setattr(hub, "reachable", lambda url: True)
    with pytest.raises(UserError, match=r"example\.invalid/w\.pth is not https"):
        download(f"{elsewhere}/moved.pth")
    assert not list(no_network.rglob("*.pth"))


def test_a_download_of_unknown_size_needs_a_checksum(elsewhere, no_network):
    with pytest.raises(UserError, match="does not say how large"):
        download(f"{elsewhere}/endless.pth")
    digest = hashlib.sha256(b"some bytes").hexdigest()
    assert download(f"{elsewhere}/endless.pth", f"sha256:{digest}").read_bytes() == b"some bytes"


def test_the_official_moco_checkpoint_is_pinned():
    source = catalogue.find("mocov2-rn50").source
    assert source == Url(
        "https://dl.fbaipublicfiles.com/moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        "md5:a04e12f8",
    )


def test_a_package_that_is_not_installed_says_how_to_get_it():
    with pytest.raises(UserError, match="pip install no-such-weights"):
        Package("no-such-weights", "models/x.pth").fetch()


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize(
    "name", ["timm:test_vit", "mocov2-rn50", "effnet-lite0", "cifar-resnet20", "open_clip:RN50"]
)
@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_with_code_is_refused_and_leaves_no_mark(tmp_path, name, writer):
    mark, path = tmp_path / "ran", tmp_path / "weights.pth"
    content = {"state_dict": {"a": torch.zeros(1)}, "hook": Bomb(mark)}
    if writer == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps({"hook": Bomb(mark)}))
    with pytest.raises(UserError, match=r"weights.pth is refused.*safetensors"):
        backbones.load(name, weights=path)
    assert not mark.exists()


def test_a_pickle_in_a_transformers_folder_is_refused_too(tmp_path, hf_folders):
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((hf_folders.vit / name).read_bytes())
    mark = tmp_path / "ran"
    torch.save({"embeddings.cls_token": torch.zeros(1), "hook": Bomb(mark)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="is refused"):
        backbones.load(f"hf:{tmp_path}")
    assert not mark.exists()


def test_a_torchscript_archive_is_refused_by_name(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "clip.pt")
    for name in ("open_clip:RN50", "timm:test_vit"):
        with pytest.raises(UserError, match=r"clip.pt is a TorchScript archive, which carries code"):
            backbones.load(name, weights=tmp_path / "clip.pt")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a file of weights"),
        (b"<html>404</html>", "not a file of weights"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer: run `git lfs pull`"),
        (b"PK\x03\x04 half an archive", "damaged"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{not json at all", "damaged"),
        (b"\x80\x02 half a pickle", "refused|damaged"),
    ],
)
def test_a_file_that_is_not_weights_is_said_to_be_none(tmp_path, content, complaint):
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_state(tmp_path / "weights.pth")


def test_an_archive_of_something_else_and_a_file_without_tensors_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("cat.jpg", b"")
    with pytest.raises(UserError, match="an archive but not a torch file"):
        read_state(tmp_path / "photos.zip")
    for content, complaint in (([1, 2], "holds no tensors"), ({"epoch": 3}, 'entry "epoch" is not a tensor')):
        torch.save(content, tmp_path / "list.pth")
        with pytest.raises(UserError, match=complaint):
            read_state(tmp_path / "list.pth")


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(UserError, match=r"no file or folder nowhere/w.pth"):
        backbones.load("resnet50", weights="nowhere/w.pth")
