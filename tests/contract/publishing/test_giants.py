"""F28 and the giant transaction: it delays only events that wait for what came before it.

Passes are counted, never seconds.  The long form of the transaction has 1,000,000 events.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database, log
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction
from tests.kit.log import TOPIC, put, texts, topic
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("max_allowed_packet and its limits")

SMALL = "tests/small"
PASS = 50
#: What a hot tenant publishes between two passes of PASS events.
BURST = 3 * PASS

NEWEST_FIRST = {
    "postgres": [
        ("append_chunks", "ORDER BY f.id\n        LIMIT", "ORDER BY f.id DESC\n        LIMIT"),
        (
            "append_chunks",
            "COALESCE(r.highest, (append_chunks.tick).last_id)",
            "(append_chunks.tick).last_id",
        ),
    ],
    "mysql": [
        (
            "claim_blocks",
            "ORDER BY p.block\n         LIMIT wanted",
            "ORDER BY p.block DESC\n         LIMIT 1",
        )
    ],
}


def _burst(connection: Any, number: int, name: str = TOPIC) -> None:
    """Events of one hot key."""
    publish_batch(connection, [Message(name, b"hot", key="hot") for _ in range(number)])


def _passes_until(connection: Any, wanted: list[str], most: int, burst: int) -> int:
    """Passes until the small tenant's events have their sequences; the hot one goes on."""
    for number in range(1, most + 1):
        assert log.sequence(connection, PASS).sequenced <= PASS
        if texts(connection, name=SMALL) == wanted:
            return number
        _burst(connection, burst)
    pytest.fail(f"not sequenced after {most} passes")


@proves("F28")
@pytest.mark.parametrize("waiting", [0, 4 * PASS, 10 * PASS])
def test_a_hot_key_delays_nobody_beyond_what_came_before(
    db: ContractDatabase, waiting: int
) -> None:
    """Guard: events are taken in the order of their ids, whatever partition they are of."""
    own = db.connect()
    topic(own, 4)
    topic(own, name=SMALL)
    if waiting:
        _burst(own, waiting)
    put(own, "small", name=SMALL)
    _passes_until(own, ["small"], waiting // PASS + 2, BURST)
    if waiting:
        assert log.status(own).unsequenced_events > 0  # The hot one is behind by itself.


@proves("F28", guard="the order")
def test_newest_first_a_small_tenant_starves(db: ContractDatabase) -> None:
    """Mutant: a pass takes the newest events."""
    own = db.connect()
    topic(own, 4)
    topic(own, name=SMALL)
    for mutant in NEWEST_FIRST["postgres" if db.engine == "postgres" else "mysql"]:
        db.without_guard(*mutant)
    _burst(own, 4 * PASS)
    put(own, "small", name=SMALL)
    _burst(own, 2 * PASS)
    with pytest.raises(pytest.fail.Exception):
        _passes_until(own, ["small"], 6, BURST)


@proves("F28")
def test_many_small_tenants_beside_a_giant_one(db: ContractDatabase) -> None:
    """Each gets its events within the passes that the whole backlog takes, in any partition."""
    own = db.connect()
    topic(own, 16)
    for number in range(8):
        topic(own, name=f"{SMALL}{number}")
    for number in range(8):
        _burst(own, BURST)
        put(own, str(number), name=f"{SMALL}{number}")
    done = []
    for _ in range(8 * (BURST + 1) // PASS + 2):
        log.sequence(own, PASS)
        done.append([n for n in range(8) if texts(own, name=f"{SMALL}{n}")])
    assert done[-1] == list(range(8))
    assert all(len(found) >= (place * PASS) // (BURST + 1) - 1 for place, found in enumerate(done))


@proves("one giant transaction")
@pytest.mark.parametrize(
    ("events", "size"),
    [(10_000, 500), pytest.param(1_000_000, 50_000, marks=pytest.mark.long)],
)
def test_one_transaction_of_very_many_events(db: ContractDatabase, events: int, size: int) -> None:
    """Guards: passes of a bounded size, and no lock of a publisher's that others wait for."""
    own = db.connect()
    topic(own, 4)
    topic(own, name=SMALL)
    with open_transaction(db) as giant:
        for first in range(0, events, 1_000):
            _numbered(giant, first)
            if first == events // 2000 * 1000:
                publish(own, SMALL, b"beside")
        assert log.sequence(own, size).sequenced == 1  # While the giant one is open.
        giant.commit()
    publish(own, SMALL, b"behind")
    session = db.connect()
    passes, memory = 0, []
    while (result := log.sequence(session, size)).sequenced or result.more:
        assert result.sequenced <= size
        passes += 1
        memory.append(_memory(db, session))
    assert passes <= events // size + 3
    assert max(memory) <= 1.5 * max(memory[:3]) + 1_000_000
    assert texts(own, name=SMALL) == ["beside", "behind"]
    _judge(db, own, events)


def _numbered(connection: Any, first: int) -> None:
    publish_batch(
        connection,
        [Message(TOPIC, b"%d" % n, partition=n % 4) for n in range(first, first + 1_000)],
    )


def _memory(db: ContractDatabase, session: Any) -> int:
    """What a pass leaves in its session: bytes of PostgreSQL, rows of tables in memory."""
    if db.engine == "postgres":
        query = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts"
        ((bytes_used,),) = database.execute(session, query)
        return int(bytes_used)
    database.execute(session, "USE penstock")
    ((rows,),) = database.execute(session, "SELECT COUNT(*) FROM batch")
    return 100 * int(rows)


def _judge(db: ContractDatabase, own: Any, events: int) -> None:
    """Every event once, in the order of its transaction."""
    for partition in range(4):
        numbers: list[int] = []
        while found := log.fetch(own, TOPIC, partition, len(numbers) + 1, 10_000):
            numbers += [int(event.payload) for event in found]
        assert numbers == list(range(partition, events, 4))
    assert log.gaps(own, TOPIC) == []
    assert count(db, "events") == events + 2
