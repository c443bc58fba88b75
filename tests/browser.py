"""Opens a file in headless Chromium and tells what the browser saw: console, requests, size, picture.

Speaks the DevTools protocol over two pipes, so it needs no library. Chromium is Debian's package:

    apt-get install -y --no-install-recommends chromium
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--window-size=1240,900",
)
TIMEOUT_S = 60.0


@dataclass
class Seen:
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    content_width: int = 0
    content_height: int = 0
    png: bytes = b""
    text: str = ""


def look_at(page: Path, print_media: bool = False) -> Seen:
    """Loads a page to its end; raises RuntimeError where there is no Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("chromium is missing: apt-get install -y --no-install-recommends chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()[::-1]
        command = " ".join([chromium, *FLAGS, f"--user-data-dir={profile}", f"3<&{to_browser} 4>&{theirs}"])
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], pass_fds=(to_browser, theirs), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(theirs)
        # A browser that hangs is killed, which ends the reading below with an error.
        guard = threading.Timer(TIMEOUT_S, process.kill)
        guard.start()
        try:
            return _look(_Pipe(ours, from_browser), page, print_media)
        finally:
            guard.cancel()
            os.close(ours)
            os.close(from_browser)
            process.kill()
            process.wait()


def _look(pipe: "_Pipe", page: Path, print_media: bool) -> Seen:
    target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
    pipe.session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Network", "Log", "Runtime"):
        pipe.call(f"{domain}.enable")
    if print_media:
        pipe.call("Emulation.setEmulatedMedia", media="print")
    pipe.call("Page.navigate", url=page.as_uri())
    pipe.wait_for("Page.loadEventFired")
    size = pipe.call("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    shot = pipe.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    text = pipe.call("Runtime.evaluate", expression="document.body.innerText")["result"]["value"]
    return Seen(
        console=[json.dumps(e) for e in pipe.events if e["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled")],
        requests=[e["params"]["request"]["url"] for e in pipe.events if e["method"] == "Network.requestWillBeSent"],
        content_width=size["width"],
        content_height=size["height"],
        png=base64.b64decode(shot["data"]),
        text=text,
    )


class _Pipe:
    """Calls and events of one session; messages are JSON ended by a zero byte."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._messages = self._read_all(read)
        self._number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages:
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)
        raise RuntimeError(f"Chromium went away during {method}")

    def wait_for(self, event: str) -> None:
        if any(seen["method"] == event for seen in self.events):
            return
        for answer in self._messages:
            self.events.append(answer)
            if answer.get("method") == event:
                return
        raise RuntimeError(f"Chromium went away before {event}")

    @staticmethod
    def _read_all(read: int) -> Iterator[dict[str, Any]]:
        buffer = b""
        while chunk := os.read(read, 1 << 20):
            *whole, buffer = (buffer + chunk).split(b"\0")
            yield from (json.loads(message) for message in whole)
