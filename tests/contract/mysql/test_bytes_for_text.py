"""A connection of PyMySQL that gives bytes for texts."""

from __future__ import annotations

from typing import Any

import pymysql

import penstock
from penstock.subscriptions import queue
from tests.contract.databases import MySQLDatabase
from tests.kit.log import drain
from tests.kit.queue import QUEUE, TOPIC, filled


def test_texts_are_read_whatever_the_application_asked_for(mysql_db: MySQLDatabase) -> None:
    own = filled(mysql_db.connect(), 0)
    given: Any = mysql_db.connect()
    plain = pymysql.connect(
        host=given.host, port=given.port, user=given.user, password=given.password,
        use_unicode=False, autocommit=True,
    )  # fmt: skip
    with plain:
        plain.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        penstock.publish(plain, TOPIC, b"1", key="é", headers={"a": "é"}, partition=0)
        drain(own)
        (event,) = penstock.fetch(plain, TOPIC, 0, 1)
        assert (event.key, event.headers, event.payload) == ("é", {"a": "é"}, b"1")
        (held,) = queue.receive(plain, QUEUE)
        queue.acknowledge(plain, QUEUE, [held.receipt])
        with plain.cursor() as cursor:
            cursor.execute("SELECT 'é'")
            assert cursor.fetchone() == ("é".encode(),)
