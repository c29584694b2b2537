"""A log that has been used for a while: many topics, events, positions, blocks and the like.

Events go straight into their table, as publishers write them; the sequencer itself numbers them.
The ledgers get rows of the past for one partition first, then for all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import log
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.kit.log import TOPIC, drain, put, topic
from tests.kit.stream import SUBSCRIPTION

TOPICS = 1_000
PARTITIONS = 4
#: Events are written, and then numbered, in steps and passes of so many.
STEP = 50_000
PASS = 2_500
#: Commits of each partition in the past.
PAST = 5
#: Ticks of one event: the index of a partition is deep, and the ledger of ticks long.
TICKS = 300

#: The same on every engine, or by dialect.
Statements = tuple[str, ...] | dict[str, tuple[str, ...]]

#: Numbers from 1 to %(count)s, at most 65,536.
NUMBERS = {
    "postgres": "(SELECT n FROM generate_series(1, %(count)s) AS s (n)) AS s",
    "mysql": "(SELECT a.n + 1 AS n FROM penstock.numbers AS a WHERE a.n < %(count)s) AS s",
}

NAMES = (
    (
        "INSERT INTO penstock.topics (namespace_id, name, address, partitions)"
        " SELECT t.namespace_id, concat('t', s.n), concat('tests/t', s.n), t.partitions"
        " FROM penstock.topics AS t CROSS JOIN {numbers}"
    ),
    (
        "INSERT INTO penstock.partitions (id, topic_id, number)"
        " SELECT t.id * 65536 + s.n - 1, t.id, s.n - 1"
        " FROM penstock.topics AS t CROSS JOIN {numbers}"
        " WHERE t.address <> 'tests/log' AND s.n <= t.partitions"
    ),
    (
        "INSERT INTO penstock.leases (subscription_id, partition_id)"
        " SELECT s.id, p.id FROM penstock.subscriptions AS s CROSS JOIN penstock.partitions AS p"
        " WHERE s.name = 'all'"
        " AND NOT EXISTS (SELECT 1 FROM penstock.leases AS l"
        " WHERE l.subscription_id = s.id AND l.partition_id = p.id)"
    ),
)

#: The past: commits, changes of hands, blocks, dead letters, of all topics in turn.
LEDGERS = (
    (
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT l.subscription_id, l.partition_id, n.position, 1, 'commit'"
        " FROM penstock.leases AS l"
        " CROSS JOIN (SELECT s.n - 1 AS position FROM {numbers}) AS n"
    ),
    (
        "INSERT INTO penstock.blocks"
        " (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)"
        " SELECT p.subscription_id, p.partition_id, p.position + 1, p.position + 1, 1"
        " FROM penstock.positions AS p"
    ),
    (
        "INSERT INTO penstock.relay_failures (block_id, attempt, error)"
        " SELECT b.id, 1, 'x' FROM penstock.blocks AS b"
    ),
    (
        "INSERT INTO penstock.dead_letters (subscription_id, partition_id, sequence, history,"
        " event_id, type, content_type, payload, created_at, reason)"
        " SELECT b.subscription_id, b.partition_id, b.id, 1, {uuid}, '', '', 'x', {present}, 'x'"
        " FROM penstock.blocks AS b"
    ),
    (
        "INSERT INTO penstock.lease_history"
        " (subscription_id, partition_id, lease_epoch, holder, {change}, at)"
        " SELECT p.subscription_id, p.partition_id, p.position, 'z', 'acquired', {present}"
        " FROM penstock.positions AS p"
    ),
    (
        "INSERT INTO penstock.consumers"
        " (subscription_id, id, session, weight, joined_at, heartbeat_at, deadline)"
        " SELECT s.id, d.sequence, {uuid}, 1, {present}, {present}, {present}"
        " FROM penstock.subscriptions AS s JOIN penstock.dead_letters AS d"
        " ON d.subscription_id = s.id AND d.sequence <= 1000"
    ),
)
#: The partitions that are looked at have moved a thousand times, up to where they begin.
DEEP = (
    (
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT l.subscription_id, l.partition_id, 0, 0, 'carried' FROM penstock.leases AS l"
        " JOIN penstock.subscriptions AS o ON o.id = l.subscription_id CROSS JOIN {numbers}"
        " WHERE o.name = 'tests'"
    ),
)
WORDS = {
    "postgres": {"uuid": "gen_random_uuid()", "present": "now()", "change": "change"},
    "mysql": {"uuid": "RANDOM_BYTES(16)", "present": "UTC_TIMESTAMP(6)", "change": "`change`"},
}

#: As publishers write: on MySQL in blocks, of which every tenth holds one event.  Every other event
#: goes to the first topic, whose partitions are deep.
EVENTS = {
    "postgres": (
        (
            "INSERT INTO penstock.events (partition_id, event_id, key, type, content_type, payload)"
            " SELECT (%(first)s + (s.n % 2) * (s.n / 2 % 1000)) * 65536 + s.n / 6 % 4,"
            " gen_random_uuid(), s.n::text, 'x', '', 'x' FROM {numbers}"
        ),
    ),
    "mysql": (
        (
            "INSERT INTO penstock.pending (event_count)"
            " SELECT IF(s.n % 10 = 0, 1, 256) FROM {numbers} WHERE s.n <= %(count)s DIV 230"
        ),
        (
            "INSERT INTO penstock.events"
            " (id, partition_id, event_id, `key`, type, content_type, payload, created_at)"
            " SELECT p.block * 256 + s.n,"
            " (%(first)s + (s.n % 2) * ((p.block * 128 + s.n DIV 2) % 1000)) * 65536"
            " + s.n DIV 6 % 4,"
            " RANDOM_BYTES(16), s.n, 'x', '', 'x', UTC_TIMESTAMP(6)"
            " FROM penstock.pending AS p JOIN penstock.numbers AS s ON s.n < p.event_count"
        ),
    ),
}
_GROWN = (
    "events", "pending", "chunks", "ticks", "positions", "leases", "lease_history", "blocks",
    "relay_failures", "dead_letters", "topics", "partitions", "consumers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seeded:
    """A database with a past, and a consumer that holds the partitions of the first topic."""

    db: ContractDatabase
    events: int
    member: Membership
    leases: list[Lease]

    @property
    def is_postgres(self) -> bool:
        """Else it is MySQL or MariaDB."""
        return self.db.engine == "postgres"

    def analyse(self) -> None:
        """The statistics that the server makes by itself sooner or later."""
        for table in _GROWN:
            if self.is_postgres and table != "pending":
                self.db.run(f"ANALYZE penstock.{table}")
            elif not self.is_postgres and table != "ticks":
                self.db.run(f"ANALYZE TABLE penstock.{table}")


def seeded(db: ContractDatabase, events: int) -> Seeded:
    """Fill a fresh database."""
    own = db.connect()
    first = _names(db, own)
    for _ in range(0, events, STEP):
        log.ensure_slices(own)
        _run(db, EVENTS, STEP, first)
        drain(own, PASS)
    for _ in range(TICKS):
        put(own, "x")
        log.sequence(own)
    _run(db, LEDGERS, PAST)
    stream.subscribe(own, SUBSCRIPTION, [TOPIC])
    stream.configure_subscription(
        own, SUBSCRIPTION, heartbeat_seconds=600, lease_seconds=3600, release_seconds=600
    )
    _run(db, DEEP, 1_000)
    member = stream.join(own, SUBSCRIPTION, "a")
    leases = stream.check_in(own, member)
    assert len(leases) == PARTITIONS
    assert log.status(own).unsequenced_events == 0
    return Seeded(db, count(db, "events"), member, leases)


def _names(db: ContractDatabase, own: Any) -> int:
    """The topics, and a subscription that reads them all.  Returns the id of the first topic."""
    topic(own, PARTITIONS)
    stream.subscribe(own, "all", [TOPIC])
    _run(db, NAMES, TOPICS - 1)
    ((first,),) = db.run("SELECT id FROM penstock.topics WHERE address = 'tests/log'")
    return int(first)


def _run(db: ContractDatabase, statements: Statements, number: int, first: int = 0) -> None:
    dialect = "postgres" if db.engine == "postgres" else "mysql"
    chosen = statements[dialect] if isinstance(statements, dict) else statements
    for statement in chosen:
        text = statement.format(numbers=NUMBERS[dialect], **WORDS[dialect])
        db.run(text.replace("%(count)s", str(number)).replace("%(first)s", str(first)))
