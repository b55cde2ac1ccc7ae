"""Headless Chromium over its debugging pipe: real clicks and keys, console, network, colours, widths.

The protocol is JSON messages, each ended by a zero byte, on two file descriptors that the browser inherits.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str:
    """The browser's path; on Debian and as root it is installed where it is missing."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if (
        path is None
        and Path("/etc/debian_version").exists()
        and os.geteuid() == 0
        and shutil.which("apt-get")
    ):
        for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-qq", *words], check=False, capture_output=True, timeout=280)
        path = shutil.which("chromium")
    if path is None:
        raise RuntimeError("these tests need a browser: install chromium (Debian: apt-get install chromium)")
    return path


class Browser:
    """One page of one browser; `console` and `requests` hold all that happened since `open`."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="probe-browser-")
        read_by_browser, self._to = os.pipe()
        self._from, written_by_browser = os.pipe()

        def descriptors() -> None:  # the browser expects its ends at 3 (commands) and 4 (answers)
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_by_browser, written_by_browser)]
            for place, end in zip((3, 4), ends, strict=True):
                os.dup2(end, place)

        self.process = subprocess.Popen(
            [find(), *FLAGS, f"--user-data-dir={self.profile}", "--host-resolver-rules=MAP * ~NOTFOUND"],
            preexec_fn=descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_browser)
        os.close(written_by_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events on the way are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise RuntimeError("the browser went away")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"])[:400])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:600])
        return answer["result"].get("value")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until its charts are drawn."""
        self.console.clear()
        self.requests.clear()
        self.view(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def view(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def wait(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"!!({condition})"):
            if time.monotonic() > end:
                raise RuntimeError(f"not within {seconds} s: {condition}; console: {self.console}")
            time.sleep(0.03)

    def press(self, key: str) -> None:
        """One key, as a person would press it."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        common = {"key": key, "windowsVirtualKeyCode": codes[key], "text": "\r" if key == "Enter" else ""}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """The whole page, from top to bottom."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            self._session = None
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.profile, ignore_errors=True)
