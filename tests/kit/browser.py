"""A headless Chromium, driven by its DevTools protocol over a pipe: a real page, real forms."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import missing
from tools.screenshot import PROGRAMS

_SECONDS = 60.0


class Browser:
    """One tab."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._numbers = itertools.count(1)
        self._rest = b""
        self._events: deque[Any] = deque(maxlen=1_000)
        #: What the browser has refused or complained of.
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command to the tab."""
        return self._call(method, session=self._session, **params)

    def open(self, url: str) -> None:
        """Go to an address, and wait until the page is there."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._loaded()

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self) -> str:
        """What a person sees."""
        return " ".join(str(self.run("document.body.innerText")).split())

    def fill(self, name: str, value: str) -> None:
        """Type into the visible field of this name."""
        self.run(f"{_field(name)}.value = {json.dumps(value)}")

    def press(self, words: str) -> None:
        """Click the button or the link with these words, and wait for the page that follows."""
        self._events.clear()
        self.run(
            "[...document.querySelectorAll('button, a')].find("
            f"each => each.innerText.trim() === {json.dumps(words)}).click()"
        )
        self._loaded()

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size and the system a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        """Write what is in the window."""
        found = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))

    def _loaded(self) -> None:
        until = time.monotonic() + _SECONDS
        while True:
            for event in [*self._events]:
                if event["method"] == "Page.loadEventFired":
                    return
            self._take(until)

    def _call(self, method: str, session: str = "", **params: Any) -> Any:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": params}
        if session:
            asked["sessionId"] = session
        os.write(self._writing, json.dumps(asked).encode() + b"\0")
        until = time.monotonic() + _SECONDS
        while True:
            answer = self._take(until)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _take(self, until: float) -> Any:
        """The next message; an event is kept too."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], until - time.monotonic())
            assert ready, "the browser says nothing"
            self._rest += os.read(self._reading, 1 << 20)
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        if "method" in found:
            self._events.append(found)
            if found["method"] in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.complaints.append(str(found["params"]))
        return found


def _field(name: str) -> str:
    wanted = json.dumps(f'[name="{name}"]:not([type="hidden"])')
    return f"document.querySelector({wanted})"


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        missing("Chromium", "it is not on the PATH; on Debian: apt-get install chromium")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # Away from 3 and 4, which may be in use here.
    given = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in (to_read, from_write)]

    def as_the_browser_wants() -> None:
        os.dup2(given[0], 3)
        os.dup2(given[1], 4)

    process = subprocess.Popen(
        [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--hide-scrollbars", f"--user-data-dir={directory}", "--remote-debugging-pipe",
            "about:blank",
        ],
        pass_fds=(3, 4),
        preexec_fn=as_the_browser_wants,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for each in (to_read, from_write, *given):
            os.close(each)
        yield Browser(from_read, to_write)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(from_read)
