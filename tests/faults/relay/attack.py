"""Two relays of one subscription under attack, and what their sink must hold afterwards.

Events are published in slices, so each deed meets relays at work. A relay is killed at a random
moment or at a named point, or stopped until another one has taken over and is at work; the broker
is restarted under both.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from penstock.subscriptions import stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.faults.relay.points import POINTS
from tests.relay.conformance.under_test import Stored, UnderTest

ROOT = Path(__file__).resolve().parents[3]
SUBSCRIPTION = "under-attack"
PARTITIONS = 4
RELAYS = 2
LEASE_SECONDS = 1.5
_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 180
_PAGE = 20_000
_FEED = 1_000


#: Of the events of three types and two tenants, these pass.
FILTER = "type=t1&type=t2&where.tenant=a"
_TYPES, _TENANT = ("t1", "t2"), "a"


class Stuck(AssertionError):
    """The relays do not get on."""


@dataclass(frozen=True)
class Plan:
    """How much, and what happens meanwhile."""

    events: int
    kills: int
    pauses: int
    restarts: int
    seed: int
    textbook: bool = False
    #: The rules of the relay, behind the `#` of its sink's address.
    rules: str = ""

    def deeds(self) -> list[str]:
        """In which order; half of the kills are at named points, unless the relay has none."""
        at_points = 0 if self.textbook else max(self.kills // 2, min(self.kills, len(POINTS)))
        found = ["point"] * at_points + ["kill"] * (self.kills - at_points)
        found += ["pause"] * self.pauses + ["restart"] * self.restarts
        random.Random(self.seed).shuffle(found)
        return found


@dataclass(frozen=True)
class Verdict:
    """What the sink holds, against the log: of ``events`` that it has to hold."""

    events: int
    lost: int
    doubled: int
    out_of_order: int
    #: Doubled events that lie in no block that was begun twice.
    outside: int = 0
    #: How many events the rules of the relay have kept from it.
    left_out: int = field(default=0, compare=False)


@dataclass
class RelayAttack:
    """One topic, one subscription, two relay processes."""

    connection: psycopg.Connection[Any]
    url: str
    topic: str
    under_test: UnderTest
    plan: Plan
    #: Where the relays write down which blocks they begin to send.
    begun: Path
    published: int = 0
    done_deeds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.plan.seed)
        self._points: Iterator[str] = itertools.cycle(POINTS)
        self._relays: list[subprocess.Popen[bytes]] = []
        self._armed: dict[int, str] = {}
        self._stopped: list[subprocess.Popen[bytes]] = []
        names.create_topic(self.connection, self.topic, PARTITIONS, create_namespaces=True)
        stream.subscribe(self.connection, SUBSCRIPTION, [self.topic])
        stream.configure_subscription(
            self.connection, SUBSCRIPTION, heartbeat_seconds=LEASE_SECONDS / 5,
            lease_seconds=LEASE_SECONDS, release_seconds=1,
        )  # fmt: skip

    def run(self) -> Verdict:
        """Relay everything under attack, and compare."""
        deeds = self.plan.deeds()
        part = self.plan.events // (len(deeds) + 1) + 1
        self._publish(part)
        self._relays = [self._start(slot) for slot in range(RELAYS)]
        for deed in deeds:
            before = self.published
            self._publish(part)
            if deed != "point":  # somewhere in the work on this slice
                self._until(self._beyond(before - part + part * self.rng.random()))
                time.sleep(self.rng.uniform(0, 0.03))
            getattr(self, f"_{deed}")(part)
            self.done_deeds[deed] += 1
        for each in self._stopped:
            each.send_signal(signal.SIGCONT)
        self._until(self._beyond(self.published))
        time.sleep(0.5 if self._stopped else 0)  # one that woke late may still write
        return self.verdict()

    def verdict(self) -> Verdict:
        """Each event once and in order, or what is wrong."""
        found = [self._of_partition(partition) for partition in range(PARTITIONS)]
        verdict = Verdict(*(sum(each) for each in zip(*found, strict=True)))
        return replace(verdict, left_out=self.published - verdict.events)

    def stop(self) -> None:
        """End every process."""
        for each in [*self._relays, *self._stopped]:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.kill()
            each.wait()

    def _kill(self, part: int) -> None:
        """At a random moment."""
        slot = self.rng.randrange(RELAYS)
        self._relays[slot].kill()
        self._replace(slot)

    def _point(self, part: int) -> None:
        """A relay that ends by itself at the next named point."""
        slot = self.rng.randrange(RELAYS)
        if slot not in self._armed:
            self._armed[slot] = next(self._points)
            self._relays[slot].terminate()
            self._replace(slot)
        armed = self._relays[slot]
        self._until(lambda: armed.poll() is not None, feed=min(part, _FEED))
        if armed.returncode != -signal.SIGKILL:
            raise Stuck(f"the relay ended with {armed.returncode} at {self._armed[slot]}")
        self.done_deeds[f"at {self._armed.pop(slot)}"] += 1
        self._replace(slot)

    def _pause(self, part: int) -> None:
        """Past its lease, until the other one has done all and is at work on the next slice."""
        slot = self.rng.randrange(RELAYS)
        asleep = self._relays[slot]
        asleep.send_signal(signal.SIGSTOP)
        self._until(self._beyond(self.published), but=slot)
        before = self.published
        self._publish(part)
        self._until(self._beyond(before + part * self.rng.random() / 2), but=slot)
        asleep.send_signal(signal.SIGCONT)

    def _restart(self, part: int) -> None:
        """The broker goes and comes back."""
        self.under_test.restart()

    def _replace(self, slot: int) -> None:
        self._relays[slot].wait(_PATIENCE_SECONDS)
        self._relays[slot] = self._start(slot)

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        """A relay; each cuts its blocks in another size."""
        command = [
            *(sys.executable, "-m", "tests.faults.relay.worker"),
            *("--block-events", str(self.rng.randrange(150, 800))),
            *(["--textbook"] if self.plan.textbook else []),
        ]
        if slot in self._armed:
            command += ["--point", f"{self._armed[slot]}:{self.rng.randrange(1, 6)}"]
        command += ["--begun", str(self.begun)]
        rules = f"#{self.plan.rules}" if self.plan.rules else ""
        command += [self.url, SUBSCRIPTION, self.under_test.address + rules]
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **self.under_test.environ},
        )  # fmt: skip

    def _publish(self, count: int) -> None:
        """So many events, spread over the partitions, with their sequences."""
        self.connection.execute(
            "SELECT penstock.publish(topic => %s, payload => convert_to('payload ' || g, 'UTF8'),"
            " key => 'k' || g %% 97, type => 't' || g %% 3, partition => g %% 4,"
            " headers => jsonb_build_object('tenant', CASE WHEN g %% 5 = 0 THEN 'b' ELSE 'a' END))"
            " FROM generate_series(%s::int, %s::int) AS g",
            (self.topic, self.published + 1, self.published + count),
        )
        self.published += count
        sequence_round(self.connection, max_passes=10_000)

    def _beyond(self, events: float) -> Callable[[], bool]:
        return lambda: self._done() >= events

    def _done(self) -> int:
        return sum(stream.position(self.connection, SUBSCRIPTION, self.topic).values())

    def _until(self, reached: Callable[[], bool], *, but: int | None = None, feed: int = 0) -> None:
        """Wait for it; Stuck when it takes too long.  With ``feed`` there is always work."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                raise Stuck(f"{self._done()} of {self.published}; {dict(self.done_deeds)}")
            for slot, each in enumerate(self._relays):
                if not feed and slot != but and each.poll() is not None:
                    self._died(slot, each.returncode)
            if feed and self._done() >= self.published:
                self._publish(feed)
            time.sleep(_POLL_SECONDS)

    def _died(self, slot: int, code: int) -> None:
        """A relay that has reached its point before it was its turn is replaced."""
        if code != -signal.SIGKILL or slot not in self._armed:
            raise Stuck(f"a relay ended by itself with {code}")
        self.done_deeds[f"at {self._armed.pop(slot)}"] += 1
        self._replace(slot)

    def _of_partition(self, partition: int) -> tuple[int, ...]:
        places = self._expected(partition).items()
        found = [self._of_place(partition, place, expected) for place, expected in places]
        return tuple(sum(each) for each in zip(*found, strict=True))

    def _of_place(
        self, partition: int, place: str, expected: list[Stored]
    ) -> tuple[int, int, int, int, int]:
        known_as = names.describe_topic(self.connection, self.topic).known_as
        found = self.under_test.stored(place, known_as, partition)
        counted = Counter(found)
        again = [each for each, count in counted.items() if count > 1]
        # A sink that only takes keeps the order in which events come first.
        order = found if self.under_test.exactly else list(counted)
        return (
            len(expected),
            len(set(expected) - counted.keys()),
            len(found) - len(counted) + len(counted.keys() - set(expected)),
            sum(after < before for before, after in itertools.pairwise(order)),
            sum(not self._was_open(partition, each, found) for each in again),
        )

    def _was_open(self, partition: int, event: Stored, found: list[Stored]) -> bool:
        """Whether an event's block was begun again, or had not ended when the event came again."""
        blocks = [
            (last, count)
            for (number, first, last), count in self._begun.items()
            if number == partition and first <= event[0] <= last
        ]
        if any(count > 1 for _, count in blocks):
            return True
        places = [place for place, each in enumerate(found) if each == event]
        return max(found[places[0] : places[-1]])[0] <= max(last for last, _ in blocks)

    @functools.cached_property
    def _begun(self) -> Counter[tuple[int, ...]]:
        lines = self.begun.read_text().splitlines()
        return Counter(tuple(map(int, each.split())) for each in lines)

    def _expected(self, partition: int) -> dict[str, list[Stored]]:
        """What each place at the sink has to hold."""
        has_places = "to={topic}.{type}" in self.plan.rules
        names_of = [f"{self.topic}.{each}" for each in _TYPES] if has_places else [self.topic]
        found: dict[str, list[Stored]] = {name: [] for name in names_of}
        for sequence, payload, kind, tenant in self._log(partition):
            if not self.plan.rules or (kind in _TYPES and tenant == _TENANT):
                place = f"{self.topic}.{kind}" if has_places else self.topic
                found[place].append((sequence, payload))
        return found

    def _log(self, partition: int) -> list[tuple[int, bytes, str, str]]:
        found: list[tuple[int, bytes, str, str]] = []
        while True:
            rows = self.connection.execute(
                "SELECT sequence, payload, type, headers->>'tenant'"
                " FROM penstock.fetch(%s, %s, %s, %s)",
                (self.topic, partition, len(found) + 1, _PAGE),
            ).fetchall()
            found += rows
            if not rows:
                return found


@contextmanager
def attack(
    connection: psycopg.Connection[Any],
    under_test: UnderTest,
    plan: Plan,
    *,
    url: str,
    topic: str,
    folder: Path,
) -> Iterator[RelayAttack]:
    """An attack whose processes end with the block.  The sink's places are made before."""
    begun = folder / "begun"
    begun.touch()
    made = RelayAttack(connection, url, topic, under_test, plan, begun)
    sink = under_test.sink()
    sink.preflight(topic, PARTITIONS)
    sink.close()
    try:
        yield made
    finally:
        made.stop()
