"""A headless Chromium, driven over a pipe with the DevTools protocol; the standard library is all it takes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """The browser's path, or None on a machine without one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a browser. `complaints` are its errors: exceptions, console errors, refused content."""

    def __init__(self, profile: Path) -> None:
        path = found()
        assert path is not None
        self.complaints: list[str] = []
        self._number, self._buffer, self._session = 0, b"", ""
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        theirs = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 20) for pipe in (commands_out, answers_in)]
        for pipe in (commands_out, answers_in):
            os.close(pipe)

        def as_three_and_four() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self._process = subprocess.Popen(
            [path, *_ARGUMENTS, f"--user-data-dir={profile}"],
            preexec_fn=as_three_and_four,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pipe in theirs:
            os.close(pipe)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def look(
        self,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        media: str = "",
        scripts: bool = True,
        motion: str = "no-preference",
    ) -> None:
        """Sets the window and what the page may ask about it."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, path: Path, fragment: str = "") -> float:
        """Opens a file afresh; seconds until it has loaded."""
        self.call("Page.navigate", url="about:blank")
        self.complaints.clear()
        start = time.monotonic()
        self.call("Page.navigate", url=path.as_uri() + fragment)
        while self.value("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() - start < 60, "the page does not load"
            time.sleep(0.01)
        return time.monotonic() - start

    def value(self, expression: str) -> Any:
        """What a JavaScript expression amounts to, once."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def click(self, selector: str, kinds: Sequence[str] = ("mouseMoved", "mousePressed", "mouseReleased")) -> None:
        """A click in the middle of an element; with `mouseMoved` alone, the pointer only hovers there."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box}.getClientRects()[0])")
        for kind in kinds:
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **(self._all() if whole else {}))[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _all(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], 60)
            assert ready, "the browser is silent"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                self.complaints.append(str(parameters["args"]))
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {parameters['message']}")
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(parameters["entry"]["text"]))
