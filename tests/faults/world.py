"""A topic, two subscriptions, and processes that work on them, each through its own proxy.

``exact`` has consumers whose effects commit with their position, ``least`` such that commit after
their effects.  Everything is written down; :meth:`World.verdict` dumps the database and judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock import database, log, subscriptions
from penstock.subscriptions import stream
from penstock.topics import names
from tests.faults import checker, told
from tests.faults.history import Recorder
from tests.faults.proxy import Proxies, Proxy, address_of

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "faults/stream"
SUBSCRIPTIONS = ("exact", "least")
PATIENCE = 200.0
#: What nobody waits for, and is too much to keep in mind: labels of events.
_LONG = (b'"op":"poll"', b'"op":"copied"', b'"op":"stage"')
#: PENSTOCK_FAULT_SEED=7 repeats the choices of a run that has failed.
SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))

LEASES = (
    "SELECT s.name, p.number, h.lease_epoch, h.holder, h.{change}, h.at"
    " FROM penstock.lease_history AS h JOIN penstock.subscriptions AS s ON s.id = h.subscription_id"
    " JOIN penstock.partitions AS p ON p.id = h.partition_id ORDER BY h.id"
)
DEAD = (
    "SELECT s.name, p.number, d.sequence, d.attempts, d.reason FROM penstock.dead_letters AS d"
    " JOIN penstock.subscriptions AS s ON s.id = d.subscription_id"
    " JOIN penstock.partitions AS p ON p.id = d.partition_id ORDER BY d.sequence"
)
LEDGER = (
    "SELECT s.name, p.number, q.position, q.lease_epoch, q.reason, q.at"
    " FROM penstock.positions AS q JOIN penstock.subscriptions AS s ON s.id = q.subscription_id"
    " JOIN penstock.partitions AS p ON p.id = q.partition_id ORDER BY q.id"
)


@dataclass
class Process:
    """A worker, and the proxy that it speaks through."""

    name: str
    role: str
    options: tuple[str, ...]
    process: subprocess.Popen[bytes]
    proxy: Proxy
    paused: bool = False

    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal, its own or another's."""
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"


@dataclass
class World:
    """One run; processes that it started end with it."""

    url: str
    folder: Path
    partitions: int = 4
    heartbeat: float = 0.4
    lease: float = 2.0
    subscriptions: tuple[str, ...] = SUBSCRIPTIONS
    target: Callable[[], tuple[str, int]] | None = None
    #: Called while it waits.
    tend: Callable[[], None] | None = None
    running: dict[str, Process] = field(default_factory=dict)
    ended: list[Process] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _read_up_to: Counter[Path] = field(default_factory=Counter)
    _records: dict[tuple[str, str], list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.proxies = Proxies()
        self.proxies.__enter__()
        self.recorder = Recorder(self.folder, "nemesis")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGCONT)
            each.process.kill()
            each.process.wait()
        self.recorder.close()
        self.proxies.__exit__()

    @property
    def engine(self) -> str:
        """'postgres' or 'mysql', as dialects are called."""
        return "mysql" if self.url.startswith("mysql") else "postgres"

    def connect(self) -> Any:
        """A connection past all proxies; the caller closes it."""
        return database.connect(self.url)

    def set_up(self) -> None:
        """The topic, its subscriptions with short leases, and a table for effects."""
        serial = "SERIAL" if self.engine == "postgres" else "BIGINT AUTO_INCREMENT"
        with contextlib.closing(self.connect()) as own:
            names.create_topic(own, TOPIC, self.partitions, create_namespaces=True)
            for each in self.subscriptions:
                stream.subscribe(own, each, [TOPIC])
                stream.configure_subscription(
                    own, each, heartbeat_seconds=self.heartbeat, lease_seconds=self.lease,
                    release_seconds=self.lease,
                )  # fmt: skip
            database.execute(
                own,
                f"CREATE TABLE effects (id {serial} PRIMARY KEY, sub VARCHAR(20), part INT,"
                " seq BIGINT, label VARCHAR(80))",
            )

    def start(self, role: str, name: str, *options: str) -> Process:
        """A worker process of its own."""
        proxy = self.proxies.open(self.target or (lambda: address_of(self.url)))
        command = [
            *(sys.executable, "-m", "tests.faults.worker", role, "--name", name),
            *("--url", proxy.url(self.url), "--history", str(self.folder), *options),
        ]
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                env=os.environ | {"PENSTOCK_TEST_LEASE": str(self.lease)},
            )  # fmt: skip
        self.running[name] = Process(name, role, options, process, proxy)
        return self.running[name]

    def revive(self) -> None:
        """Start again what poison has ended, under its old id, which waits for its old lease."""
        for each in list(self.running.values()):
            if each.process.poll() is not None and not each.name.startswith(("doomed", "zombie")):
                self.has_ended(each.name)
                self.start(each.role, each.name, *each.options)

    def note(self, fault: str, victim: str = "") -> None:
        """A fault, for the history."""
        self.done[fault] += 1
        self.recorder.write("fault", "ok", fault=fault, victim=victim)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        each = self.running.pop(name)
        self.note("kill", name)
        each.process.kill()
        each.process.wait()
        self.ended.append(each)

    def stop(self, name: str) -> None:
        """SIGSTOP."""
        self.note("stop", name)
        self.running[name].process.send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        self.running[name].process.send_signal(signal.SIGCONT)

    def terminate(self, name: str, seconds: float = PATIENCE) -> int:
        """SIGTERM once it hears it.  Returns the exit code."""
        self.until(lambda: self.has_begun(name), f"{name} has started")
        each = self.running.pop(name)
        each.process.send_signal(signal.SIGTERM)
        code = each.process.wait(seconds)
        self.ended.append(each)
        return code

    def has_ended(self, name: str) -> int:
        """Wait until it has ended by itself.  Returns how."""
        each = self.running.pop(name)
        code = each.process.wait(PATIENCE)
        self.ended.append(each)
        return code

    def seek(self, connection: Any, subscription: str, partition: int, start: str | int) -> None:
        """Move a position by hand."""
        self.note("seek")
        stream.seek(connection, subscription, TOPIC, partition, start)

    def has_begun(self, name: str) -> bool:
        """Whether the present process of this name is at work, and hears signals."""
        return bool(self.records("start", pid=self.running[name].process.pid))

    def lag(self, connection: Any, subscription: str) -> int:
        """How many events a subscription has not passed."""
        return sum(each.lag_events for each in subscriptions.lag(connection, subscription))

    def drain(self, seconds: float = PATIENCE) -> None:
        """Wait until everything is sequenced and done (L6)."""
        with contextlib.closing(self.connect()) as own:

            def is_done() -> bool:
                if log.status(own).unsequenced_events:
                    return False
                return not any(self.lag(own, each) for each in self.subscriptions)

            self.until(is_done, "all is done", seconds)

    def until(self, reached: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait for something that processes do; with their words if it does not come."""
        deadline = time.monotonic() + seconds
        while not reached():
            if self.tend is not None:
                self.tend()
            if time.monotonic() > deadline:
                words = "\n".join(
                    f"{file.name}: {file.read_text()[-1500:]}" for file in self.folder.glob("*.log")
                )
                raise AssertionError(f"seed {SEED}, not within {seconds} s: {what}\n{words}")
            time.sleep(0.03)

    def records(self, op: str, st: str = "ok", **fields: Any) -> list[dict[str, Any]]:
        """What the processes have written down so far."""
        for file in self.folder.glob("*.jsonl"):
            with file.open("rb") as lines:
                lines.seek(self._read_up_to[file])
                whole, newline, _ = lines.read().rpartition(b"\n")
            self._read_up_to[file] += len(whole) + len(newline)
            lines_of = (each for each in whole.splitlines() if not _is_long(each))
            for record in map(json.loads, lines_of):
                self._records[record["op"], record["st"]].append(record)
        wanted = fields.items()
        return [each for each in self._records[op, st] if wanted <= each.items()]

    def dump(self) -> dict[str, Any]:
        """What the database holds, as the checker reads it; also written beside the histories."""
        with contextlib.closing(self.connect()) as own:
            rows = database.call(own, "high_watermarks", topic=TOPIC)
            low = {partition: low for partition, low, *_ in rows}
            events = [row for number in low for row in log_of(own, TOPIC, number, low[number])]
            quoted = '"change"' if self.engine == "postgres" else "`change`"
            found = {
                "subscriptions": {
                    each: "least" if each == "least" else "exact" for each in self.subscriptions
                },
                "lease_seconds": self.lease,
                "log": events,
                "low": low,
                "leases": rows_of(own, LEASES.format(change=quoted)),
                "ledger": rows_of(own, LEDGER),
                "dead": rows_of(own, DEAD),
                "effects": rows_of(own, "SELECT sub, part, seq, label FROM effects ORDER BY id"),
            }
        (self.folder / "dump.json").write_text(json.dumps(found))
        return found

    def verdict(self) -> list[told.Anomaly]:
        """Every anomaly of the run."""
        self.dump()
        return checker.check(*checker.read(self.folder))


def _is_long(line: bytes) -> bool:
    return any(each in line[:80] for each in _LONG)


def log_of(connection: Any, topic: str, partition: int, first: int) -> Iterator[list[Any]]:
    """A partition of the log, as the checker reads it."""
    while events := log.fetch(connection, topic, partition, first, 1000):
        for event in events:
            label = bytes(event.payload).partition(b" ")[0].decode()
            at = event.sequenced_at.timestamp()
            yield [partition, event.sequence, label, event.key, at]
        first = events[-1].sequence + 1


def rows_of(connection: Any, query: str) -> list[list[Any]]:
    """The rows of a query, with times as numbers."""
    return [
        [each.timestamp() if hasattr(each, "timestamp") else each for each in row]
        for row in database.execute(connection, query)
    ]
