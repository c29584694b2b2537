"""The calls for every event, pass, poll and commit, each with what it may read.

Measured on a log of 50,000 events (PostgreSQL, MySQL, MariaDB): a publish reads 1, 1, 2 rows, a
batch of 20 events 20, 145, 146, a pass over them 40, 305, 462, a pass over nothing 2, 19, 22, a
fetch of 20 27, 583, 583 (on MySQL a chunk is taken apart whole), a poll 33, 620, 624, a check-in
59, 127, 154, a commit of 4 partitions 14, 101, 110, a heartbeat 2, 7, 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import database, log
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, stream
from tests.contract.reads import counted
from tests.contract.seeded import TOPICS, Seeded
from tests.kit.log import TOPIC
from tests.kit.stream import SUBSCRIPTION

#: The ledger of positions, by subscription, partition and id.
LEDGER = "positions_subscription_id_partition_id_id_idx"
#: Events in a batch, a pass, a fetch, a poll and a block.
SOME = 20


@dataclass(frozen=True, slots=True)
class Call:
    """What is called, how many rows it may read, and by which indexes of PostgreSQL."""

    act: Callable[[Any, Seeded], object]
    rows: int
    indexes: frozenset[str]


def _may_read(rows: int, indexes: str) -> Callable[[Callable[[Any, Seeded], object]], Call]:
    return lambda act: Call(act, rows, frozenset(indexes.split()))


@_may_read(20, "topics_address")
def _publish(own: Any, past: Seeded) -> object:
    return publish(own, TOPIC, b"x", key="k")


@_may_read(40, "topics_address dedup_even_pkey dedup_odd_pkey")
def _publish_once(own: Any, past: Seeded) -> object:
    return publish(own, TOPIC, b"x", dedup_key="d")


@_may_read(400, "topics_address")
def _publish_batch(own: Any, past: Seeded) -> object:
    # Half of them for partitions that are deep, half for many topics.
    topics = [TOPIC if n % 2 else f"tests/t{n}" for n in range(1, SOME + 1)]
    return publish_batch(own, [Message(each, b"x") for each in topics])


@_may_read(600, "events_tx_idx chunks_sequence ticks_pkey delayed_pkey deleted_topics_pkey")
def _sequence(own: Any, past: Seeded) -> object:
    # As many as a pass may take are none of the few.
    result = log.sequence(own, SOME)
    assert result.sequenced >= SOME
    return result


@_may_read(600, "events_tx_idx chunks_sequence ticks_pkey delayed_pkey deleted_topics_pkey")
def _sequence_few(own: Any, past: Seeded) -> object:
    result = log.sequence(own)
    assert result.sequenced >= SOME
    return result


@_may_read(40, "ticks_pkey delayed_pkey")
def _nothing_to_sequence(own: Any, past: Seeded) -> object:
    result = log.sequence(own)
    assert not result.sequenced
    return result


@_may_read(800, "topics_address partitions_number chunks_sequence events_pkey")
def _fetch(own: Any, past: Seeded) -> object:
    found = log.fetch(own, TOPIC, 0, 2_000, SOME)
    assert len(found) == SOME
    return found


@_may_read(60, "topics_address partitions_number chunks_sequence")
def _high_watermarks(own: Any, past: Seeded) -> object:
    return log.high_watermarks(own, TOPIC)


@_may_read(20, "subscriptions_name_key consumers_pkey")
def _heartbeat(own: Any, past: Seeded) -> object:
    stream.heartbeat(own, past.member)
    return None


@_may_read(60, "subscriptions_name_key consumers_pkey surveys_pkey")
def _heartbeats(own: Any, past: Seeded) -> object:
    (beat,) = stream.heartbeats(own, [past.member])
    assert beat.standing == "member"
    return None


@_may_read(300, f"consumers_pkey leases_pkey surveys_pkey active_partitions_pkey {LEDGER}")
def _check_in(own: Any, past: Seeded) -> object:
    return stream.check_in(own, past.member)


@_may_read(60, f"subscriptions_name_key leases_pkey partitions_pkey {LEDGER}")
def _held_leases(own: Any, past: Seeded) -> object:
    return stream.held_leases(own, past.member)


@_may_read(800, "consumers_pkey leases_pkey chunks_sequence events_pkey")
def _poll(own: Any, past: Seeded) -> object:
    ((_, found),) = stream.poll(own, past.member, past.leases, SOME)
    assert len(found) == SOME
    return found


@_may_read(
    900,
    "leases_pkey positions_subscription_id_partition_id_id_idx"
    " blocks_subscription_id_partition_id_id_idx chunks_sequence",
)
def _open_block(own: Any, past: Seeded) -> object:
    lease = past.leases[0]
    return database.call(
        own, "open_block", subscription=SUBSCRIPTION, consumer=past.member.consumer,
        partition_id=lease.partition_id, lease_epoch=lease.lease_epoch, max_events=SOME,
        max_bytes=1 << 20,
    )  # fmt: skip


@_may_read(900, "leases_pkey chunks_sequence events_pkey dead_letters_pkey")
def _read_block(own: Any, past: Seeded) -> object:
    return database.call_events(
        own, "read_block", subscription=SUBSCRIPTION, partition_id=past.leases[0].partition_id,
        first_sequence=1, last_sequence=SOME,
    )  # fmt: skip


@_may_read(200, f"leases_pkey {LEDGER} chunks_sequence")
def _commit(own: Any, past: Seeded) -> object:
    held = stream.check_in(own, past.member)
    with counted(own) as reads:
        stream.commit(own, past.member, [(lease, lease.position + 1) for lease in held])
    return reads


@_may_read(60, LEDGER)
def _position(own: Any, past: Seeded) -> object:
    return stream.position(own, SUBSCRIPTION, TOPIC)


@_may_read(TOPICS + 400, "ticks_pkey events_tx_idx")
def _status(own: Any, past: Seeded) -> object:
    return log.status(own)


@_may_read(25_000, "dead_letters_id")
def _dead_letter_counts(own: Any, past: Seeded) -> object:
    found = dead_letters.counts(own)
    assert sum(each.left for each in found) == 10_000
    return found


@_may_read(60, "dead_letters_id")
def _redrive(own: Any, past: Seeded) -> object:
    ((name, letter_id),) = past.db.run(
        "SELECT s.name, d.id FROM penstock.dead_letters AS d JOIN penstock.subscriptions AS s"
        " ON s.id = d.subscription_id WHERE d.redriven_at IS NULL LIMIT 1"
    )
    with counted(own) as reads:
        assert dead_letters.redrive(own, name, [letter_id]) == 1
    own.rollback()  # other calls count them
    return reads


#: In this order: what was published is sequenced next.
CALLS = {
    "publish": _publish,
    "publish_once": _publish_once,
    "publish_batch": _publish_batch,
    "sequence": _sequence,
    "sequence_few": _sequence_few,
    "nothing_to_sequence": _nothing_to_sequence,
    "fetch": _fetch,
    "high_watermarks": _high_watermarks,
    "heartbeat": _heartbeat,
    "heartbeats": _heartbeats,
    "check_in": _check_in,
    "held_leases": _held_leases,
    "poll": _poll,
    "open_block": _open_block,
    "read_block": _read_block,
    "commit": _commit,
    "position": _position,
    "status": _status,
    "dead_letter_counts": _dead_letter_counts,
    "redrive": _redrive,
}
