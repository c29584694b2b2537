"""What nobody may ask of a queue is a typed error, and a purge waits for workers in their order."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock import database
from penstock.errors import (
    InvalidArgument,
    MalformedReceipt,
    PayloadTooLarge,
    SubscriptionNotFound,
)
from penstock.subscriptions import queue
from penstock.topics import names, rights
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.kit import give_up_soon
from tests.contract.tenants import OURS, THEIRS, as_login, tenants_of
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled, mutated, receipts, receive, rows


def _with_a_long_body(own: Connection) -> list[bytes]:
    """What comes after a body that is longer than the topic allows."""
    filled(own, 1)
    database.execute(own, "UPDATE penstock.topics SET max_payload_bytes = 100")
    held = receipts(receive(own))
    held = queue.extend(own, QUEUE, held, 30, body=b"x" * 100)
    queue.extend(own, QUEUE, held, 0, body=b"x" * 101)
    return [each.event.payload for each in receive(own)]


@proves("bounds of queues")
def test_a_body_has_the_limit_of_the_topic(own: Connection) -> None:
    with pytest.raises(PayloadTooLarge, match="the body has 101 bytes, the limit of the topic is"):
        _with_a_long_body(own)


@proves("bounds of queues", guard="require_body")
@pytest.mark.long_on("mariadb")
def test_without_the_guard_it_has_none(db: ContractDatabase, own: Connection) -> None:
    """Mutant: a body of any length."""
    mutated(db, {
        "postgres": ("require_body", [("IF octet_length(body) > longest", "IF false")]),
        "mysql": ("require_body", [("IF body_bytes > longest", "IF FALSE")]),
    })  # fmt: skip
    assert _with_a_long_body(own) == [b"x" * 101]


@proves("bounds of queues")
@pytest.mark.parametrize("rows_at_once", [-1, 0, None, 100_001])
def test_a_sweep_has_a_size(own: Connection, rows_at_once: int | None) -> None:
    with pytest.raises(InvalidArgument):
        database.call(own, "sweep", max_rows=rows_at_once)


@proves("bounds of queues")
@pytest.mark.parametrize("settings", ["[1]", "3", '"order"', "null"])
def test_settings_are_an_object(own: Connection, settings: str) -> None:
    filled(own, 0)
    with pytest.raises(InvalidArgument):
        database.call(own, "configure_queue", subscription=QUEUE, settings=settings)


ONE = "00000000-0000-0000-0000-000000000001"


@proves("bounds of queues")
@pytest.mark.parametrize("verb", ["acknowledge", "release_claims"])
@pytest.mark.parametrize(
    "claims", ["'[0:0]={1}'", "'{{1}}'", "'{}'", "NULL", "'{NULL}'", "'[0:1]={1,2}'"]
)
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_receipts_are_plain_arrays(own: Connection, verb: str, claims: str) -> None:
    """Those with other bounds or with two dimensions were read in part."""
    filled(own, 1)
    call = f"SELECT penstock.{verb}('{QUEUE}', {claims}, '{{1}}', '{{1}}', '{{{ONE}}}')"
    with pytest.raises(MalformedReceipt):
        database.execute(own, call)


@proves("bounds of queues")
@pytest.mark.parametrize("claims", ["[[1]]", "[]", "{}", "1", "[null]", "[0]"])
def test_receipts_are_plain_lists(mysql_db: MySQLDatabase, claims: str) -> None:
    own = mysql_db.connect()
    filled(own, 1)
    with pytest.raises(MalformedReceipt):
        database.call(
            own, "acknowledge", subscription=QUEUE, claims=claims, first_sequences="[1]",
            last_sequences="[1]", tokens=f'["{ONE}"]', partly=False,
        )  # fmt: skip


def _beside_a_purge(db: ContractDatabase, own: Connection) -> None:
    """A worker finishes the event of a later claim while a purge waits for an earlier one."""
    filled(own, 8)
    first, second = (receipts(queue.receive(own, QUEUE, 2)) for _ in range(2))
    queue.acknowledge(own, QUEUE, first[:1])  # PostgreSQL writes what is left at the end
    with closing(db.connect(autocommit=False)) as one, closing(db.connect()) as other:
        queue.acknowledge(one, QUEUE, first[1:])
        with closing(db.connect()) as operator:
            purge = threading.Thread(target=queue.purge, args=(operator, QUEUE))
            purge.start()
            try:
                db.wait_until_blocked(operator)
                give_up_soon(db, other)
                if db.engine == "postgres":
                    queue.acknowledge(other, QUEUE, second)
            finally:
                one.commit()
                purge.join()
    assert queue.statistics(own, QUEUE).size == 0


@proves("a purge beside workers")
def test_a_purge_takes_claims_in_the_order_of_workers(
    db: ContractDatabase, own: Connection
) -> None:
    """Else the two wait for each other.  On MySQL a claim that was cut is the later one."""
    _beside_a_purge(db, own)


@proves("a purge beside workers", guard="the order")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_the_order_it_locks_a_later_one(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the DELETE takes them as they stand in the table."""
    db.without_guard("purge", "ORDER BY r.id FOR UPDATE", "ORDER BY r.id DESC FOR UPDATE")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        _beside_a_purge(db, own)


@proves("a purge beside workers")
def test_a_tenant_purges_its_own_queue(db: ContractDatabase) -> None:
    """With the role of consumers and the right to operate, and no other one's."""
    with tenants_of(db) as tenants:
        tenants.install()
        owner, login = tenants.owner, tenants.login("consumer")
        for topic in (OURS, THEIRS):
            names.create_topic(owner, topic, create_namespaces=True)
            queue.subscribe(owner, topic.replace("/", "."), [topic])
        rights.grant_namespace(owner, "theirs", tenants.somebody, "consume")
        rights.grant_namespace(owner, "ours", login, "operate")
        with as_login(tenants, login) as mine:
            assert queue.purge(mine, "ours.orders") == 0
            with pytest.raises(SubscriptionNotFound):
                queue.purge(mine, "theirs.orders")


@proves("bounds of queues")
def test_a_killed_call_leaves_the_session_as_it_was(mysql_db: MySQLDatabase) -> None:
    """KILL QUERY runs no handler: what the call had lengthened for itself is put back."""
    own = mysql_db.connect()
    filled(own, 2)
    length = "SELECT @@SESSION.group_concat_max_len"
    held = receipts(receive(own, visibility_seconds=1000))
    for autocommit in (True, False):
        errors: list[BaseException] = []
        with (
            closing(mysql_db.connect(False)) as other,
            closing(mysql_db.connect(autocommit)) as mine,
        ):
            before = rows(mine, length)

            def reject(mine: Any = mine, errors: Any = errors) -> None:
                try:
                    queue.reject(mine, QUEUE, held)
                except Exception as error:
                    errors.append(error)

            database.execute(other, "SELECT * FROM penstock.subscription_topics FOR UPDATE")
            worker = threading.Thread(target=reject)
            worker.start()
            mysql_db.wait_until_blocked(mine)
            driver: Any = mine
            mysql_db.run(f"KILL QUERY {driver.thread_id()}")
            worker.join()
            assert len(errors) == 1
            assert database.is_cancelled(errors[0])
            assert rows(mine, length) == before
            mine.rollback()
