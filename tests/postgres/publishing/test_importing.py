"""What another outbox or queue has not delivered becomes events, in one transaction."""

from __future__ import annotations

import json
import uuid
from typing import Any

import psycopg
import pytest

from penstock import log
from penstock.errors import InvalidArgument, TopicNotFound, WrongIsolation
from penstock.publishing.importing import import_outbox, import_pgmq
from tests import command
from tests.kit.log import Connection, drain, topic

OUTBOX = """
CREATE TABLE public.outbox_events (
    id uuid PRIMARY KEY, type text NOT NULL, content_type text NOT NULL, topic text NOT NULL,
    route_key text NOT NULL DEFAULT '', payload bytea NOT NULL, headers jsonb NOT NULL,
    status text NOT NULL, attempts int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL)
"""
PGMQ = """
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.q_mails (
    msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, read_ct int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb,
    headers jsonb)
"""
STATES = ("pending", "in_flight", "sent", "failed")


def _outbox(own: Connection, rows: int = 8) -> list[uuid.UUID]:
    """Rows of all states, in the order of their times; the ids of those that are not delivered."""
    own.execute(OUTBOX)
    ids = [uuid.uuid4() for _ in range(rows)]
    for number, each in enumerate(ids):
        own.execute(
            "INSERT INTO outbox_events VALUES (%s, 'order.paid', 'text/plain', 'orders', %s, %s,"
            " %s::jsonb, %s, 0, '2026-01-01'::timestamptz + %s * interval '1 s')",
            (each, "k" if number else "", str(number).encode(), json.dumps({"n": number}),
             STATES[number % 4], number),
        )  # fmt: skip
    topic(own, 1, "shop/orders")
    return [each for number, each in enumerate(ids) if number % 4 in {0, 1}]


def _tables(own: Connection) -> list[str]:
    rows = own.execute("SELECT relname FROM pg_class WHERE relname LIKE 'outbox_events%' AND"
                       " relkind = 'r'").fetchall()  # fmt: skip
    return [row[0] for row in rows]


def _address(old: str) -> str:
    return f"shop/{old}"


def test_an_outbox_is_cut_over(connection: Connection) -> None:
    """In its order, with its ids; who still writes to it gets an error."""
    ids = _outbox(connection)
    counted = import_outbox(connection, "outbox_events", _address, dry_run=True)
    assert [(each.state, each.events) for each in counted] == [("in_flight", 2), ("pending", 2)]
    assert _tables(connection) == ["outbox_events"]
    with connection.transaction():
        assert import_outbox(connection, "public.outbox_events", _address) == counted
    drain(connection)
    events = log.fetch(connection, "shop/orders", 0, 1)
    assert [each.event_id for each in events] == ids
    assert [(each.key, each.payload, each.headers) for each in events[:2]] == [
        (None, b"0", {"n": 0}), ("k", b"1", {"n": 1}),
    ]  # fmt: skip
    assert (events[0].type, events[0].content_type) == ("order.paid", "text/plain")
    assert _tables(connection) == ["outbox_events_imported"]
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("INSERT INTO outbox_events DEFAULT VALUES")


def test_an_import_that_fails_changes_nothing(connection: Connection) -> None:
    """A topic that is not there: the rows stay, and so does the table."""
    _outbox(connection)
    with pytest.raises(TopicNotFound), connection.transaction():
        import_outbox(connection, "outbox_events", lambda old: f"nowhere/{old}")
    assert _tables(connection) == ["outbox_events"]
    for wrong in ("a b", "x; DROP TABLE y", '"x"', "a.b.c"):
        with pytest.raises(InvalidArgument, match="no name of a table"):
            import_outbox(connection, wrong, _address)


def test_a_writer_that_has_not_committed_holds_it_off(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the lock. Without it the writer's row would be left behind in the old table."""
    _outbox(connection)
    monkeypatch.setattr("penstock.publishing.importing._LOCK_SECONDS", 0.1)
    with psycopg.connect(database_url) as writer:
        writer.execute("DELETE FROM outbox_events WHERE status = 'sent'")
        with pytest.raises(psycopg.errors.LockNotAvailable), connection.transaction():
            import_outbox(connection, "outbox_events", _address)
    assert _tables(connection) == ["outbox_events"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_from_before_the_lock_is_refused(
    connection: Connection, database_url: str, level: str
) -> None:
    """Guard: the level in _lock. Without it the writer's row would stay behind, uncounted."""
    ids = _outbox(connection)
    connection.execute("CREATE SCHEMA pgmq; CREATE TABLE pgmq.q_mails (msg_id bigint)")
    with psycopg.connect(database_url) as late:
        late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        late.execute("SELECT 1")
        connection.execute("UPDATE outbox_events SET status = 'pending' WHERE status = 'sent'")
        for moves in (
            lambda: import_outbox(late, "outbox_events", _address),
            lambda: import_pgmq(late, "mails", "shop/mails"),
        ):
            with pytest.raises(WrongIsolation, match=f"not {level}"):
                moves()
        late.commit()
    assert _tables(connection) == ["outbox_events"]
    with connection.transaction():
        done = import_outbox(connection, "outbox_events", _address)
    assert sum(each.events for each in done) == len(ids) + 2


def test_a_queue_of_pgmq_is_cut_over(connection: Connection) -> None:
    """A delayed message stays delayed; what a worker has comes too."""
    connection.execute(PGMQ)
    for message, read, due in (("now", 0, -1), ("held", 1, 30), ("later", 0, 3600)):
        connection.execute(
            "INSERT INTO pgmq.q_mails (message, read_ct, vt, headers) VALUES"
            " (to_jsonb(%s::text), %s, now() + %s * interval '1 s', '{\"a\": 1}')",
            (message, read, due),
        )
    connection.execute("INSERT INTO pgmq.q_mails (vt, headers) VALUES (now(), '{}')")  # pgmq's NULL
    topic(connection, 1, "shop/mails")
    with connection.transaction():
        done = import_pgmq(connection, "mails", "shop/mails")
    assert [(each.state, each.events) for each in done] == [
        ("delayed", 1), ("in_flight", 1), ("pending", 2),
    ]  # fmt: skip
    drain(connection)
    events = log.fetch(connection, "shop/mails", 0, 1)
    assert [each.payload for each in events] == [b'"now"', b'"held"', b"null"]
    assert events[0].headers["a"] == 1
    assert connection.execute("SELECT count(*) FROM penstock.delayed").fetchone() == (1,)


def test_the_command(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _outbox(connection)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    words = ("import", "outbox", "--output=json")
    assert "has no namespace" in command.run(capsys, *words).err
    said = command.run(capsys, *words, "--namespace=shop", "--dry-run")
    assert (len(said.rows), "nothing was changed" in said.err) == (2, True)
    assert "there is no topic 'no/orders'" in command.run(
        capsys, *words, "--namespace=no", "--dry-run"
    ).err  # fmt: skip
    for wrong in ("orders", "orders=", "=shop/orders"):
        assert f"{wrong!r} is not OLD=NEW" in command.run(capsys, *words, f"--topic={wrong}").err
    connection.execute("UPDATE outbox_events SET topic = 'payments' WHERE status = 'pending'")
    both = ("--topic=orders=shop/orders", "--topic=payments=shop/orders", "--failed")
    said = command.run(capsys, *words, *both)
    assert [(each["topic"], each["events"]) for each in said.rows] == [("shop/orders", 2)] * 3
    assert "outbox_events is now outbox_events_imported" in said.err
    again = command.run(capsys, *words, *both)
    assert (again.code, "it was imported already: its rows are in" in again.err) == (2, True)
    again = command.run(capsys, "import", "pgmq", "mails", "shop/orders")
    assert (again.code, "there is no table pgmq.q_mails" in again.err) == (2, True)
