"""The Python blocks of publish.md, consume.md, queue.md and archive.md, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from ops.seal import seal
from penstock import queue
from penstock.archive.targets import Target
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.pages.blocks import blocks_of, run
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic

TOPIC = "shop/orders"


def test_the_page_on_publishing(db: ContractDatabase) -> None:
    names = run("docs/publish.md", *blocks_of("docs/publish.md"), url=db.url)
    connection = db.connect()
    assert len(names["ids"]) == 500
    assert list(connection.execute("SELECT id, customer FROM orders").fetchall()) == [(7, "Ada")]
    drain(connection)  # all but the delayed one
    assert sum(penstock.log.high_watermarks(connection, TOPIC).values()) == 502


def test_the_page_on_consuming(db: ContractDatabase) -> None:
    first, second = blocks_of("docs/consume.md")
    names = run("docs/consume.md", first, url=db.url)
    connection = db.connect()
    penstock.publish(connection, TOPIC, b"{}", key="Ada")
    drain(connection)
    run("docs/consume.md", second, **names)
    assert list(connection.execute("SELECT customer FROM invoices").fetchall()) == [("Ada",)]
    assert sum(stream.position(connection, "billing", TOPIC).values()) == 1


def test_the_page_on_queues(db: ContractDatabase) -> None:
    """The worker sends the mail; then another one is received by hand."""
    first, by_hand = blocks_of("docs/queue.md")
    names = run("docs/queue.md", first, url=db.url)
    connection = db.connect()
    sent = connection.execute("SELECT mail FROM sent").fetchall()
    assert list(sent) == [("ada@example.org",)]
    penstock.publish(connection, "shop/mails", b"Welcome", key="bob@example.org")
    drain(connection)
    run("docs/queue.md", by_hand, **names)
    assert queue.statistics(connection, "mails").size == 0


def test_the_page_on_the_archive(db: ContractDatabase, tmp_path: Path) -> None:
    """Half of the events are in the archive only: both calls read all of them."""
    connection = db.connect()
    topic(connection, 1, TOPIC)
    near = Target("near", str(tmp_path))
    for number in range(2):
        penstock.publish_batch(connection, [penstock.Message(TOPIC, b"%d" % n) for n in range(9)])
        drain(connection)
        if not number:
            seal(connection, TOPIC, max_events=9)
            copy_all(connection, TOPIC, near)
            drop(connection, TOPIC, [near])
    names: dict[str, Any] = {
        "penstock": penstock, "url": db.url, "connection": connection, "targets": [near],
    }  # fmt: skip
    rows: list[int] = []
    names = run("docs/archive.md", *blocks_of("docs/archive.md"), print=rows.append, **names)
    assert sum(rows) == 18
    assert [event.sequence for event in names["seen"]] == list(range(1, 19))
