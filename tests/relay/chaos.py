"""A log whose relay process is killed and paused, and what the sink must hold afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from penstock.subscriptions import stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round

ROOT = Path(__file__).resolve().parents[2]
SUBSCRIPTION = "to-the-sink"
PARTITIONS = 2
_POLL_SECONDS = 0.005
_LEASE_SECONDS = 1.5


class Stuck(AssertionError):
    """The relay does not get on."""


@dataclass
class Chaos:
    """One topic, one subscription, and one relay process at a time."""

    connection: psycopg.Connection[Any]
    url: str
    topic: str
    sink: str
    seed: int = 1
    textbook: bool = False
    timeout: float = 60
    #: Crashes the sink's server and starts it again.
    restart: Callable[[], None] = lambda: None
    rng: random.Random = field(init=False)
    published: int = 0
    kills: int = 0
    pauses: int = 0
    restarts: int = 0
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        names.create_topic(self.connection, self.topic, PARTITIONS, create_namespaces=True)
        stream.subscribe(self.connection, SUBSCRIPTION, [self.topic])
        stream.configure_subscription(
            self.connection, SUBSCRIPTION,
            heartbeat_seconds=_LEASE_SECONDS / 5, lease_seconds=_LEASE_SECONDS, release_seconds=1,
        )  # fmt: skip

    def publish(self, count: int) -> None:
        """So many events, spread over the partitions, with their sequences."""
        self.connection.execute(
            "SELECT penstock.publish(topic => %s, payload => convert_to('payload ' || g, 'UTF8'),"
            " key => 'k' || g %% 97, type => 't', partition => g %% 2)"
            " FROM generate_series(%s::int, %s::int) AS g",
            (self.topic, self.published + 1, self.published + count),
        )
        self.published += count
        sequence_round(self.connection, max_passes=10_000)

    def expected(self, partition: int) -> list[tuple[int, bytes]]:
        """Sequence and payload of every event of a partition."""
        return self.connection.execute(
            "SELECT sequence, payload FROM penstock.fetch(%s, %s, 1, 100000)",
            (self.topic, partition),
        ).fetchall()

    def done(self) -> int:
        """How many events the subscription has passed."""
        return sum(stream.position(self.connection, SUBSCRIPTION, self.topic).values())

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """A relay process; each cuts its blocks in another size."""
        size = str(self.rng.randrange(150, 800))
        command = [
            *(sys.executable, "-m", "tests.relay.process", "--block-events", size),
            *(["--textbook"] if self.textbook else []),
            *(*options, self.url, SUBSCRIPTION, self.sink),
        ]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        self._running.append(process)
        return process

    def run(self, kills: int, pauses: int = 0, restarts: int = 0) -> None:
        """Relay everything, while the relay is killed and paused at random places.

        The sink's server is restarted so many times.
        """
        deeds = ["kill"] * kills + ["pause"] * pauses + ["restart"] * restarts
        self.rng.shuffle(deeds)
        paused: list[subprocess.Popen[bytes]] = []
        relay = self.start()
        for number, deed in enumerate(deeds, start=1):
            self.until_done(self._goal(number, len(deeds)), relay)
            time.sleep(self.rng.uniform(0, 0.03))  # anywhere in the work on a block
            if deed == "restart":
                self.restart()
                self.restarts += 1
                continue
            if deed == "kill":
                self.kill(relay)
            else:
                relay.send_signal(signal.SIGSTOP)
                paused.append(relay)
                self.pauses += 1
            relay = self.start()
            if paused and self.rng.random() < 0.5:
                self._wake(paused.pop(0))
        for each in paused:
            self._wake(each)
        self.until_done(self.published, relay)

    def kill(self, relay: subprocess.Popen[bytes]) -> None:
        """SIGKILL, which must find it at work."""
        assert relay.poll() is None, "the relay had ended by itself"
        relay.kill()
        relay.wait()
        self.kills += 1

    def until_done(self, events: int, relay: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until the subscription has passed so many events."""
        self.until(lambda: self.done() >= events, relay)

    def until(
        self, reached: Callable[[], bool], relay: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Wait for it; Stuck when it takes too long."""
        deadline = time.monotonic() + self.timeout
        while not reached():
            if relay is not None and relay.poll() is not None:
                raise Stuck(f"the relay ended with {relay.returncode}")
            if time.monotonic() > deadline:
                raise Stuck(f"{self.done()} of {self.published} after {self.timeout} s")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End every process."""
        for each in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.kill()
            each.wait()

    def _goal(self, number: int, of: int) -> int:
        """Where the next deed is done: spread over the work, never at its end."""
        return int(self.published * (number - self.rng.random()) / (of + 1))

    def _wake(self, relay: subprocess.Popen[bytes]) -> None:
        """After its lease has ended and somebody else has gone on."""
        done = self.done()
        self.until(lambda: self.done() > done or done >= self.published)
        relay.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def chaos(connection: psycopg.Connection[Any], url: str, **fields: Any) -> Iterator[Chaos]:
    """A chaos whose processes end with the block."""
    made = Chaos(connection, url, **fields)
    try:
        yield made
    finally:
        made.stop()


@dataclass(frozen=True)
class Difference:
    """What is wrong with what a sink holds."""

    lost: int
    doubled: int
    in_order: bool

    @property
    def exact(self) -> bool:
        """Nothing lost, nothing doubled, in order."""
        return self.lost == 0 and self.doubled == 0 and self.in_order


def compare(expected: list[tuple[int, bytes]], found: list[tuple[int, bytes]]) -> Difference:
    """The two, event by event."""
    distinct = set(found)
    return Difference(
        lost=len(set(expected) - distinct),
        doubled=len(found) - len(distinct),
        in_order=found == sorted(found) and distinct <= set(expected),
    )
