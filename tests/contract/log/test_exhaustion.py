"""F31: counters that reach their end refuse calls; none wraps, and no number is given twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ops.seal import seal
from penstock import log
from penstock.errors import InvalidArgument
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.kit import count
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import TOPIC, drain, put, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, filled, member_with_lease, more

pytestmark = pytest.mark.mariadb_differs("counters of ids")

LAST = 2**63 - 1
LAST_SEQUENCE = 10**18
LAST_INT = 2**31 - 1
#: A number that does not fit is a typed error on every engine.
OUT_OF_RANGE = InvalidArgument

NO_END: Guard = {
    "postgres": ("append_few", " + 8223372036854775807 - 8223372036854775807", ""),
    "mysql": ("append_chunks", " + 8223372036854775807 - 8223372036854775807", ""),
}


def _near_the_end(db: ContractDatabase) -> Any:
    """A partition whose last sequence is the last but two that can be read."""
    own = db.connect()
    topic(own)
    put(own, "1")
    drain(own)
    db.run(f"UPDATE penstock.chunks SET first_sequence = {LAST_SEQUENCE - 2}")
    db.run(f"UPDATE penstock.partitions SET low_sequence = {LAST_SEQUENCE - 2}")
    return own


@proves("F31")
def test_sequences_work_up_to_the_last_one(db: ContractDatabase) -> None:
    """Guard: the overflow in the head of a partition; the pass is refused, and the log stays."""
    own = _near_the_end(db)
    for number in (2, 3):
        put(own, str(number))
        assert drain(own) == 1
    found = log.fetch(own, TOPIC, 0, LAST_SEQUENCE - 2)
    assert [event.sequence for event in found] == [LAST_SEQUENCE + n for n in (-2, -1, 0)]
    put(own, "beyond")
    with pytest.raises(OUT_OF_RANGE):
        log.sequence(own)
    assert log.high_watermarks(own, TOPIC) == {0: LAST_SEQUENCE}
    assert log.status(own).unsequenced_events == 1
    with pytest.raises(InvalidArgument):
        log.fetch(own, TOPIC, 0, LAST_SEQUENCE + 1)


def test_without_the_end_events_are_numbered_that_nobody_can_read(db: ContractDatabase) -> None:
    """Mutant: numbers go on."""
    own = _near_the_end(db)
    without(db, NO_END)
    for number in range(3):
        put(own, str(number))
        drain(own)
    assert log.high_watermarks(own, TOPIC) == {0: LAST_SEQUENCE + 1}


@proves("F31")
def test_a_lease_epoch_does_not_wrap(db: ContractDatabase) -> None:
    """Guard: signed arithmetic of the database; who comes after the last one is refused."""
    own = db.connect()
    filled(own)
    db.run(f"UPDATE penstock.leases SET lease_epoch = {LAST - 1}")
    member, lease = member_with_lease(own, "a")
    assert lease.lease_epoch == LAST
    stream.commit(own, member, [(lease, 1)])
    end_lease(db, "a")
    other = stream.join(own, member.subscription, "b")
    with pytest.raises(OUT_OF_RANGE):
        stream.check_in(own, other)
    assert stream.position(own, member.subscription, STREAM) == {0: 1}
    assert db.run("SELECT lease_epoch FROM penstock.leases") == [(LAST,)]


@proves("F31")
def test_a_log_epoch_does_not_wrap(db: ContractDatabase) -> None:
    """Guard: the column's type; what was sealed stays, and nothing is sealed twice."""
    own = db.connect()
    filled(own, events=4)
    assert seal(own, STREAM, max_events=2, max_age_seconds=None)
    db.run(f"UPDATE penstock.log_epochs SET log_epoch = {LAST_INT} WHERE log_epoch = 2")
    more(own, events=2, start=5)
    with pytest.raises(OUT_OF_RANGE):
        seal(own, STREAM, max_events=2, max_age_seconds=None)
    assert count(db, "log_epochs") == 2


@proves("F31")
def test_the_ids_of_events_do_not_wrap(db: ContractDatabase) -> None:
    """Guards: sequences without CYCLE, signed arithmetic; what was published before stays."""
    own = db.connect()
    topic(own)
    put(own, "1")
    drain(own)
    before = _set_ids(db, LAST if db.engine == "postgres" else 2**55)
    try:
        with pytest.raises((OUT_OF_RANGE, psycopg.Error)):
            put(own, "2")
        drain(own)
        assert count(db, "events") == 1
        assert log.high_watermarks(own, TOPIC) == {0: 1}
    finally:
        _set_ids(db, before)
    put(own, "3")
    assert drain(own) == 1
    assert [event.payload for event in log.fetch(own, TOPIC, 0, 1)] == [b"1", b"3"]


def _set_ids(db: ContractDatabase, last: int) -> int:
    """Set the last id that was given out.  Returns the one before."""
    if not isinstance(db, MySQLDatabase):
        ((before,),) = db.run("SELECT last_value FROM penstock.events_id")
        db.run(f"SELECT setval('penstock.events_id', {last})")
        return int(before)
    ((before,),) = db.run("SELECT MAX(id) DIV 256 FROM penstock.events")
    db.run("DELETE FROM penstock.pending")
    db.run(f"ALTER TABLE penstock.pending AUTO_INCREMENT = {last + 1}")
    return int(before)
