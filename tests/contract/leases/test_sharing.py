"""Fair shares among consumers that come, go and check in all at once, on every engine."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from penstock import database
from penstock.errors import UnknownConsumer
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, acquired, check_in_rounds, join, without
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, holders

#: Steps of the property test, threads and seconds of the storm.
EVERYDAY, FULL = 6, 60
FEW_AT_ONCE, MANY_AT_ONCE = (12, 2.0), (64, 60.0)

EPOCH_STAYS: Guard = {
    "postgres": ("acquire", "lease_epoch = l.lease_epoch + 1,", "lease_epoch = l.lease_epoch,"),
    "mysql": ("acquire", "l.lease_epoch = free_epoch + 1,", "l.lease_epoch = free_epoch,"),
}
ANY_LEASE_IS_FREE: dict[str, list[tuple[str, str, str]]] = {
    "postgres": [
        (
            "acquire",
            "= acquire.subscription_id AND l.state = 'AVAILABLE'",
            "= acquire.subscription_id",
        ),
        ("acquire", "WHERE l.state = 'AVAILABLE'", "WHERE true"),
    ],
    "mysql": [
        (
            "acquire",
            "AND l.partition_id = part_id AND l.state = 'AVAILABLE'",
            "AND l.partition_id = part_id",
        ),
        ("read_board", "SELECT l.partition_id, l.state,", "SELECT l.partition_id, 'AVAILABLE',"),
    ],
}


def _busy(connection: Any, partitions: int) -> None:
    topic(connection, partitions, STREAM)
    publish_batch(connection, [Message(STREAM, b"x", partition=n) for n in range(partitions)])
    drain(connection)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=600, lease_seconds=1800, release_seconds=600
    )


def _quotas(weights: dict[str, float], partitions: int) -> dict[str, int]:
    """Largest remainders, ties by id."""
    whole = sum(weights.values())
    exact = {name: partitions * weight / whole for name, weight in weights.items()}
    quotas = {name: int(share) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: (-(exact[name] - quotas[name]), name))
    for name in by_rest[: partitions - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


@proves("L3, L4 by weight")
@pytest.mark.parametrize("steps", [EVERYDAY, pytest.param(FULL, marks=pytest.mark.long)])
def test_random_weights_joins_and_leaves(db: ContractDatabase, steps: int) -> None:
    """Guards: quotas, release of the surplus, acquisition. Seeded; weights whose sums are exact."""
    own, rng, partitions = db.connect(), random.Random(5), 23
    _busy(own, partitions)
    members: dict[str, Membership] = {}
    weights: dict[str, float] = {}
    for step in range(steps):
        if len(members) > 1 and rng.random() < 0.4:
            name = rng.choice(sorted(members))
            stream.leave(own, members.pop(name))
            del weights[name]
        else:
            name = f"c{step:03}"
            weights[name] = rng.choice([0.25, 0.5, 1, 1, 2, 4])
            members[name] = stream.join(own, SUBSCRIPTION, name, weights[name])
        everybody = list(members.values())
        check_in_rounds(own, everybody, 1)
        rng.shuffle(everybody)
        check_in_rounds(own, everybody, 2)
        held = list(holders(own).values())
        wanted = _quotas(weights, partitions)
        assert {each: held.count(each) for each in members} == wanted, (step, weights)
        before = acquired(db)
        check_in_rounds(own, everybody, 1)
        assert acquired(db) == before


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_consumers_share_a_thousand_partitions(db: ContractDatabase) -> None:
    """1,024 partitions, 1,000 consumers: all held after two rounds, spread 1, and no move then."""
    own = db.connect()
    _busy(own, 1_024)
    members = join(own, 1_000)
    check_in_rounds(own, members, 2)
    held = list(holders(own).values())
    counts = [held.count(member.consumer) for member in members]
    assert sum(counts) == 1_024
    assert max(counts) - min(counts) <= 1
    before = acquired(db)
    check_in_rounds(own, members, 1)
    assert acquired(db) == before


class Rider:
    """A thread that joins, checks in, gives back, dies and comes back, as chance has it."""

    def __init__(self, db: ContractDatabase, number: int) -> None:
        self._url = db.url
        self._rng = random.Random(number)
        self._consumer = f"c{number:02}"
        self._member: Membership | None = None
        self.check_ins = 0

    def ride(self, until: float) -> int:
        """Until then; an error ends the test."""
        with closing(database.connect(self._url)) as connection:
            while time.monotonic() < until:
                try:
                    self._step(connection)
                except UnknownConsumer:
                    self._member = None
        return self.check_ins

    def _step(self, connection: Any) -> None:
        if self._member is None:
            self._member = stream.join(
                connection, SUBSCRIPTION, self._consumer, self._rng.choice([1, 1, 2])
            )
        held = stream.check_in(connection, self._member, fresh=self._rng.random() < 0.5)
        self.check_ins += 1
        chance = self._rng.random()
        if chance < 0.1:
            stream.leave(connection, self._member)
            self._member = None
        elif chance < 0.6:
            stream.release(
                connection, self._member, [each for each in held if each.state == "RELEASING"]
            )
        elif chance < 0.7:
            stream.release(connection, self._member, held)
        else:
            stream.heartbeats(connection, [self._member])


def _storm(db: ContractDatabase, threads: int, seconds: float) -> int:
    own = db.connect()
    _busy(own, 32)
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(threads) as pool:
        rides = [pool.submit(Rider(db, number).ride, until) for number in range(threads)]
        return sum(ride.result() for ride in rides)


def _overlaps(db: ContractDatabase) -> list[tuple[Any, ...]]:
    """Where the history of a partition has two holders at once, or one lease_epoch twice."""
    quoted = '"change"' if db.engine == "postgres" else "`change`"
    rows = db.run(
        f"SELECT partition_id, lease_epoch, holder, {quoted}"
        " FROM penstock.lease_history ORDER BY id"
    )
    by_partition: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        by_partition[row[0]].append(row)
    return [bad for rows in by_partition.values() for bad in _bad(rows)]


def _bad(rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    present: tuple[int, str] | None = None
    last = 0
    for row in rows:
        _, epoch, holder, change = row
        if change == "acquired":
            if present is not None or epoch <= last:
                yield row
            present, last = (epoch, holder), epoch
        elif change in {"released", "expired"}:
            if present != (epoch, holder):
                yield row
            present = None


@proves("S9 with many at once")
@pytest.mark.parametrize(
    ("threads", "seconds"), [FEW_AT_ONCE, pytest.param(*MANY_AT_ONCE, marks=pytest.mark.long)]
)
@pytest.mark.long_on("mysql")
def test_check_ins_at_once(db: ContractDatabase, threads: int, seconds: float) -> None:
    """S9, no deadlock. Guards: the subscription's row, SKIP LOCKED, lease_epoch, AVAILABLE."""
    assert _storm(db, threads, seconds) > threads
    assert _overlaps(db) == []


@proves("S9 with many at once", guard="lease_epoch")
def test_an_epoch_that_stays_is_seen(db: ContractDatabase) -> None:
    """Mutant: an acquisition does not raise lease_epoch."""
    without(db, EPOCH_STAYS)
    own = db.connect()
    _busy(own, 2)
    (member,) = join(own, 1)
    for _ in range(2):
        stream.release(own, member, stream.check_in(own, member))
    assert _overlaps(db)


@proves("S9 with many at once", guard="AVAILABLE")
def test_live_leases_that_are_taken_are_seen(db: ContractDatabase) -> None:
    """Mutant: acquire takes any lease, free or not."""
    for guard in ANY_LEASE_IS_FREE["postgres" if db.engine == "postgres" else "mysql"]:
        db.without_guard(*guard)
    _storm(db, 4, 1.0)
    assert _overlaps(db)
