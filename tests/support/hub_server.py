"""A stand-in for the hub on this machine: the few calls by which its client makes a repository."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TOKEN = "hf_of_this_test"
LFS = (".safetensors", ".onnx", ".bin")  # as the hub decides it for a new repository


class Hub:
    """What was uploaded: files by repository, and large objects by digest."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.address = ""

    def commit(self, repository: str, lines: list[bytes]) -> None:
        for line in map(json.loads, lines):
            value = line["value"]
            if line["key"] == "file":
                content = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.objects[value["oid"]]
            else:
                continue
            self.repositories[repository][value["path"]] = content


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *words: object) -> None:
        pass

    def answer(self, content: object, code: int = 200, **headers: str) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        for key, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def missing(self) -> None:
        self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    def do_HEAD(self) -> None:
        self.answer({})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if not path.startswith("/api/models/") or name not in self.hub.repositories:
            return self.missing()
        files = self.hub.repositories[name]
        if "/tree/" in path:
            rows = [{"type": "file", "path": f, "size": len(c), "oid": "0" * 40} for f, c in files.items()]
            return self.answer(rows)
        siblings = [{"rfilename": file} for file in files]
        return self.answer({"id": name, "siblings": siblings, "sha": "0" * 40, "private": False, "tags": []})

    def do_PUT(self) -> None:
        self.hub.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer({})

    def do_POST(self) -> None:
        path, body = urlsplit(self.path).path, self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.repositories.setdefault(name, {})
            self.hub.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return self.answer({"url": f"{self.hub.address}/{name}", "id": name, "name": name})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.hub.address}/upload/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if "/preupload/" in path:
            asked = json.loads(body)["files"]
            modes = {f["path"]: "lfs" if f["path"].endswith(LFS) else "regular" for f in asked}
            rows = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]
            return self.answer({"files": rows})
        if "/commit/" in path:
            self.hub.commit(name, body.splitlines())
            url = f"{self.hub.address}/{name}/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40, "hookOutput": "", "success": True})
        return self.answer({})


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that listens on the loopback interface."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
