"""The demo's stage: server, daemons, traffic, and the faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

import penstock
from penstock import log, subscriptions
from penstock.database import migrate
from penstock.errors import StaleLease
from penstock.subscriptions import stream
from resources.embedded import EmbeddedPostgres
from tools.demo import projection

TOPIC = "bank/accounts"
PARTITIONS = 6
SUBSCRIPTION = "projection"
CONSUMERS = ("consumer-1", "consumer-2", "consumer-3")
SCALE = 2
#: Short, so that a demo has time for take-overs. A service keeps the defaults (3 s and 10 s).
HEARTBEAT_SECONDS = 0.5
LEASE_SECONDS = 2.0
HERE = Path(__file__).parent
_PENSTOCK = "from penstock.cli.main import app; app()"


class DemoFailed(Exception):
    """A part of the demo did not do what it must.  The text says which."""


class Stage:
    """Everything that runs, in one directory.  Its exit stops every process that it started."""

    def __init__(self, directory: Path, mutant: str = "") -> None:
        self.directory = directory
        self.mutant = mutant
        self.server = EmbeddedPostgres(
            directory / "postgres", settings={"track_commit_timestamp": "on"}
        )
        self.halts = directory / "halts"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Stage:
        self.halts.mkdir(parents=True, exist_ok=True)
        for left in self.halts.iterdir():
            left.unlink()
        try:
            self.server.start()
        except BaseException:  # a signal: nothing else would stop a server that is up
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.server.stop()

    @property
    def url(self) -> str:
        """The demo's database."""
        return self.server.url("penstock")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to the demo's database."""
        return penstock.connect(self.url, statement_timeout_ms=120_000)

    def prepare(self) -> None:
        """A fresh database with the bank, the log, the projection and the subscriptions."""
        with penstock.connect(self.server.url("postgres")) as connection:
            connection.execute("DROP DATABASE IF EXISTS penstock WITH (FORCE)")
        migrate.migrate(self.url)
        self._pgbench("-i", "-q", "-s", str(SCALE))
        with self.connect() as connection:
            connection.execute((HERE / "projection.sql").read_text().encode())
            penstock.create_topic(connection, TOPIC, PARTITIONS, create_namespaces=True)
            stream.subscribe(connection, SUBSCRIPTION, [TOPIC])
            stream.configure_subscription(
                connection,
                SUBSCRIPTION,
                heartbeat_seconds=HEARTBEAT_SECONDS,
                lease_seconds=LEASE_SECONDS,
                release_seconds=LEASE_SECONDS,
            )
            if self.mutant == "unfenced":
                take_fence_out(connection)

    def start_daemons(self) -> None:
        """The sequencer, and the consumers of the projection, until all of them have joined."""
        self.start_sequencer()
        for name in CONSUMERS:
            self._start_consumer(name)
        with self.connect() as connection:
            self.wait_until(
                lambda: (
                    connection.execute("SELECT count(*) FROM penstock.consumers").fetchone()
                    == (len(CONSUMERS),)
                ),
                "the consumers did not join",
            )

    def start_sequencer(self) -> None:
        """Start what gives events their sequences and frees the leases of the dead."""
        self._daemon("sequencer", "--roles", "sequencer,sweep")

    def start_relay(self, name: str, subscription: str, sink: str) -> None:
        """Start a relay that goes on until it is told to stop, and wait until it has joined."""
        command = ["-c", _PENSTOCK, "relay", subscription, sink, "--forever"]
        environment = {"PENSTOCK_DATABASE_URL": self.url}
        process = self._start(name, [sys.executable, *command], environment)
        joined = f"SELECT 1 FROM penstock.consumers WHERE id LIKE '%-{process.pid}-%'"
        with self.connect() as connection:
            self.wait_until(
                lambda: connection.execute(joined).fetchone() is not None,
                f"{name} did not join",
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def _start_consumer(self, name: str) -> None:
        handler = f"{SUBSCRIPTION}=tools.demo.projection:project"
        self._daemon(
            name,
            *("--roles", "consumers", "--batch-consumer", handler),
            *("--consumer-id", name, "--batch-size", "200"),
        )

    def start_traffic(self, transactions: int, rate: int) -> subprocess.Popen[bytes]:
        """Start pgbench, a client that uses nothing of Penstock except one SQL function."""
        clients = 4
        return self._start(
            "pgbench",
            [
                *self._pgbench_command("-n", "-f", str(HERE / "bank.sql")),
                *("-c", str(clients), "-j", "1", "-s", str(SCALE)),
                *("-t", str(transactions // clients), "--rate", str(rate), "--max-tries", "100"),
            ],
            self._pgbench_environment(),
        )

    @contextmanager
    def halted(self, name: str, point: str) -> Iterator[subprocess.Popen[bytes]]:
        """Halt a consumer at a point of its handler while the block runs."""
        asked = projection.halt_file(self.halts, name, point)
        halted = asked.with_suffix(f".{point}-halted")
        asked.touch()
        self.wait_until(halted.exists, f"{name} never came to the point {point!r}")
        try:
            yield self._processes[name]
        finally:
            halted.unlink()

    def wait_until(self, condition: Callable[[], bool], problem: str, seconds: float = 60) -> None:
        """Wait until the condition holds.  DemoFailed with the problem when it takes too long."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check_alive()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{problem} ({seconds:.0f} s)")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """SIGKILL a process.  From now on it is not expected to run."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def check_alive(self) -> None:
        """DemoFailed when a process has ended that should run."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                tail = self.log_file(name).read_text(errors="replace")[-800:]
                raise DemoFailed(f"{name} ended with exit code {process.returncode}: {tail}")

    def stop_daemons(self) -> None:
        """SIGTERM: every daemon drains and leaves with exit code 0."""
        for process in self._processes.values():
            process.terminate()
        for name, process in self._processes.items():
            if process.wait(timeout=40) != 0:
                raise DemoFailed(f"{name} did not drain: exit code {process.returncode}")
        self._processes.clear()

    def log_file(self, name: str) -> Path:
        """The file to which a process writes its output."""
        return self.directory / "logs" / f"{name}.log"

    def refused_commits(self) -> int:
        """How often a consumer's commit was refused because it no longer held the lease."""
        logs = (self.directory / "logs").glob("*.log")
        return sum(each.read_text().count(StaleLease.__name__) for each in logs)

    def _daemon(self, name: str, *arguments: str) -> None:
        environment = {
            "PENSTOCK_DATABASE_URL": self.url,
            projection.DIRECTORY: str(self.halts),
            projection.CONSUMER: name,
            projection.MUTANT: self.mutant,
        }
        self._start(name, [sys.executable, "-m", "consumers", *arguments], environment)

    def _start(
        self, name: str, command: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        self.log_file(name).parent.mkdir(exist_ok=True)
        with self.log_file(name).open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
            )
        self._processes[name] = process
        return process

    def _pgbench(self, *arguments: str) -> None:
        done = subprocess.run(
            self._pgbench_command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | self._pgbench_environment(),
        )
        if done.returncode != 0:
            raise DemoFailed(f"pgbench failed: {done.stderr.strip()}")

    def _pgbench_command(self, *arguments: str) -> list[str]:
        return [str(self.server.pgbench), *arguments]

    def _pgbench_environment(self) -> dict[str, str]:
        parts = urlsplit(self.url)
        return {
            "PGHOST": parts.hostname or "",
            "PGPORT": str(parts.port),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
            "PGDATABASE": parts.path.lstrip("/"),
        }


def take_fence_out(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """For the demo that must fail: commits no longer lock the lease, nor check it."""
    connection.execute(
        """
        CREATE OR REPLACE FUNCTION penstock.hold_leases(
            owner penstock.subscriptions, consumer text, partition_ids bigint[],
            lease_epochs bigint[]
        ) RETURNS void LANGUAGE sql AS 'SELECT'
        """
    )


def lag(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    """How many events are published and not yet in the projection."""
    waiting = log.status(connection).unsequenced_events
    return waiting + sum(each.lag_events for each in subscriptions.lag(connection, SUBSCRIPTION))
