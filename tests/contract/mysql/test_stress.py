"""Publishers, passes, clean, merges and changes of names at once on MySQL and MariaDB."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ops.retention import storage_mysql
from penstock import Message, database, log
from penstock.errors import PenstockError
from penstock.publishing.publish import publish, publish_batch
from penstock.topics import names
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import sql
from tests.kit.log import drain, topic

SECONDS = 30
_TOPICS = [f"tests/t{number}" for number in range(4)]

_Step = Callable[[Any, random.Random], object]


def _publish(connection: Any, chance: random.Random) -> None:
    connection.rollback()
    level = chance.choice(["READ COMMITTED", "REPEATABLE READ"])
    sql(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
    for _ in range(chance.choice([1, 1, 3])):
        if chance.random() < 0.3:
            many = [Message(chance.choice(_TOPICS), b"x") for _ in range(chance.choice([2, 300]))]
            publish_batch(connection, many)
        else:
            publish(connection, chance.choice(_TOPICS), b"x", key=str(chance.random()))
    if chance.random() < 0.7:
        connection.commit()


def _sequence(connection: Any, chance: random.Random) -> None:
    log.sequence(connection, chance.choice([1, 7, 100, 10_000]))


def _merge(connection: Any, _: random.Random) -> None:
    for (partition_id,) in database.call(connection, "mergeable_partitions"):
        database.call(connection, "merge_chunks", partition_id=partition_id)


def _change_names(connection: Any, chance: random.Random) -> None:
    address = chance.choice(_TOPICS)
    names.delete_topic(connection, address)
    names.create_topic(connection, address, 3)
    database.call(connection, "settle_blocks")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_nothing_deadlocks_with_a_pass(mysql_db: MySQLDatabase, seed: int) -> None:
    """F12. Guards: those of test_mysql_locks.py; before them, 1213 came within 30 s."""
    own = mysql_db.connect()
    for address in _TOPICS:
        topic(own, 3, address)
    end = time.monotonic() + SECONDS
    failed = threading.Event()

    def clean(_: Any, __: random.Random) -> None:
        storage_mysql.drop_slices(mysql_db.url)

    def repeat(number: int, step: _Step) -> None:
        chance = random.Random(f"{seed} {number}")
        with database.connect(mysql_db.url, autocommit=step is not _publish) as connection:
            while time.monotonic() < end and not failed.is_set():
                try:
                    step(connection, chance)
                except PenstockError:
                    pass  # a topic that is being made anew
                except BaseException:
                    failed.set()
                    raise

    steps: list[_Step] = [*[_publish] * 4, _sequence, _sequence, _merge, _change_names, clean]
    with ThreadPoolExecutor(len(steps)) as pool:
        done = [pool.submit(repeat, number, step) for number, step in enumerate(steps)]
    assert [each.exception() for each in done] == [None] * len(steps)
    drain(own)
    assert log.status(own).unsequenced_events == 0
