"""Topics of very many partitions, and namespaces of very many topics: what was made can be deleted.

MariaDB cuts JSON_ARRAYAGG at the session's group_concat_max_len, 1 MiB unless somebody sets less;
the short form crosses a limit that was set low, the long one the server's own.
"""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import database, log
from penstock.errors import TopicNotFound
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.kit.proof import proves


def _limited(db: ContractDatabase) -> Any:
    """A connection whose arrays end early, where a session can say so."""
    own = db.connect()
    if isinstance(db, MySQLDatabase):
        database.execute(own, "SET SESSION group_concat_max_len = 64")
    return own


def _low_sequences(db: ContractDatabase) -> list[tuple[Any, ...]]:
    return db.run(
        "SELECT p.low_sequence, COUNT(*) FROM penstock.partitions AS p"
        " GROUP BY p.low_sequence ORDER BY p.low_sequence"
    )


def _leases(db: ContractDatabase) -> int:
    ((count,),) = db.run("SELECT COUNT(*) FROM penstock.leases")
    return int(count)


def _delete_topic(db: ContractDatabase, own: Any, partitions: int) -> None:
    """One that has events in its first and its last partition, and a reader."""
    penstock.create_topic(own, "wide/one", partitions, create_namespaces=True)
    for number in (0, partitions - 1, partitions - 1):
        penstock.publish(own, "wide/one", b"x", partition=number)
    while log.sequence(own).more:
        pass
    if partitions < 1000:
        stream.subscribe(own, "reader", ["wide/one"])
    penstock.delete_topic(own, "wide/one", with_subscriptions=True)
    with pytest.raises(TopicNotFound):
        penstock.fetch(own, "wide/one", 0, 1)
    assert _low_sequences(db) == [(1, partitions - 2), (2, 1), (3, 1)]
    assert _leases(db) == 0


def _delete_namespace(db: ContractDatabase, own: Any, topics: int, partitions: int) -> None:
    for number in range(topics):
        penstock.create_topic(own, f"wide/many/{number}", partitions, create_namespaces=True)
    penstock.create_topic(own, "wide/beside", 1)
    assert penstock.delete_namespace(own, "wide/many", with_topics=True) == topics
    assert [each.address for each in penstock.list_topics(own)] == ["wide/beside"]
    ((deleted,),) = db.run("SELECT COUNT(*) FROM penstock.deleted_topics")
    assert deleted == topics


@proves("the greatest widths")
def test_a_topic_of_many_partitions_is_deleted(db: ContractDatabase) -> None:
    """Guard on MySQL and MariaDB: the partitions stand in a table of the session's."""
    _delete_topic(db, _limited(db), 300)


@proves("the greatest widths")
def test_a_namespace_of_many_topics_is_deleted(db: ContractDatabase) -> None:
    """Guard on MySQL and MariaDB: lock_doomed sets the limit, and counts."""
    _delete_namespace(db, _limited(db), 200, 2)


@proves("the greatest widths")
def test_a_topic_of_many_readers_is_deleted(db: ContractDatabase) -> None:
    """Guard on MySQL and MariaDB: lock_readers sets the limit, and counts."""
    own = _limited(db)
    penstock.create_topic(own, "wide/read", 1, create_namespaces=True)
    for number in range(150):
        stream.subscribe(own, f"reader {number}", ["wide/read"])
    penstock.delete_topic(own, "wide/read", with_subscriptions=True)
    assert _leases(db) == 0


@proves("the greatest widths")
@pytest.mark.long_on("mysql")
def test_a_topic_of_65_536_partitions_is_deleted(db: ContractDatabase) -> None:
    """As wide as a topic can be, with the limits that the server has."""
    _delete_topic(db, db.connect(), 65_536)


@proves("the greatest widths")
@pytest.mark.long
def test_a_namespace_of_3_000_topics_is_deleted(db: ContractDatabase) -> None:
    """48,000 partitions."""
    _delete_namespace(db, db.connect(), 3_000, 16)
