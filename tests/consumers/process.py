"""A daemon in a separate process, seen as its operator sees it: log, HTTP, signals, exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from tests.consumers.handlers import GATE, JOURNAL
from tests.consumers.soon import STARTED_AFTER_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 45.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Wait until the condition holds and return its value; a failure says what it waited for."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


#: How the programs are started: the daemon of a checkout, and a command of the wheel.
DAEMON = ("-m", "consumers")
PENSTOCK = ("-c", "from penstock.cli.main import app; app()")
#: The same two, for tests that wait until their start is over.
SOON_DAEMON = ("-m", "tests.consumers.soon", "consumers")
SOON_PENSTOCK = ("-m", "tests.consumers.soon", "penstock")


@dataclass
class Daemon:
    """``python -m consumers`` with these arguments, or another program."""

    url: str
    folder: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = DAEMON
    #: Stands before the command, to run it elsewhere; its pages cannot be read then.
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Start it; its output goes to a file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal = self.folder / "journal"
        self.gate = self.folder / "gate"
        self._seen_started: float | None = None
        self.output = self.folder / "output"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "DB_"))
        }
        environment |= {JOURNAL: str(self.journal), GATE: str(self.gate)}
        if self.url:
            environment["PENSTOCK_DATABASE_URL"] = self.url
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, *self.program, *self.arguments],
                cwd=ROOT,
                env=environment | dict(self.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        """Everything that it has written."""
        return self.output.read_text()

    def events(self) -> list[dict[str, Any]]:
        """The whole lines of its log."""
        whole, _, _ = self.text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def wait_started(self) -> Daemon:
        """Until it says that it has started."""

        def look() -> bool:
            assert self.process.poll() is None, self.text()
            return any(line["event"] == "started" for line in self.events())

        until(look, "the daemon's start")
        return self

    @property
    def port(self) -> int:
        """The port that the kernel gave it."""
        started = [line for line in self.events() if line["event"] == "started"]
        return int(started[0]["http_port"])

    def age(self) -> float:
        """For how many seconds it has been running at least, counted from when it was seen to."""
        if self._seen_started is None:
            self.wait_started()
            self._seen_started = time.monotonic()
        return time.monotonic() - self._seen_started

    def wait_past_start(self) -> None:
        """Until a failure of a worker is no failure of the start any more; for the SOON ones."""
        until(lambda: self.age() > STARTED_AFTER_SECONDS, "the end of the start")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def says(self, path: str, status: int, text: str = "") -> bool:
        """Whether one answer has both: a second one may say something else."""
        found = self.get(path)
        return found[0] == status and text in found[1]

    def metric(self, name: str, worker: str) -> float:
        """One sample, as a Prometheus server reads it; 0 when there is none."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels == {"worker": worker}:
                    return float(sample.value)
        return 0.0

    def handled(self) -> list[str]:
        """What its handlers have noted, in order."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def terminate(self) -> None:
        """SIGTERM, as every orchestrator sends it first."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has left."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it in any case."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
