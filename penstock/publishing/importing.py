"""Import: what another outbox or queue of the same PostgreSQL has not delivered becomes events.

The cut-over is the caller's transaction. It locks the old table, publishes what is left in it, in
its order, and renames it. So each row is an event or a row, never both, and who still writes to the
old table gets an error instead of losing a message.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.database.steps import run
from penstock.errors import InvalidArgument, WrongIsolation
from penstock.publishing.known_topics import known_topics
from penstock.publishing.publish import publish_batch
from penstock.records import Message

#: How many rows are published at a time, and how long the lock of the old table is waited for.
_PAGE = 1_000
_LOCK_SECONDS = 5
#: What the old table is called afterwards.
SUFFIX = "_imported"
#: A name, or two with a dot between them; each is quoted where it stands in a statement.
_NAME = re.compile(r"[^\W\d][\w$]{0,50}(?:\.[^\W\d][\w$]{0,50})?")

_OUTBOX = """
SELECT created_at, id, topic, type, content_type, route_key, payload, headers::text
FROM {table}
WHERE status = ANY (%(states)s::text[])
  AND (created_at, id) > (%(after)s::timestamptz, %(after_id)s::uuid)
ORDER BY created_at, id
LIMIT %(page)s
"""
_OUTBOX_COUNTS = """
SELECT topic, status, count(*) FROM {table} WHERE status = ANY (%(states)s::text[])
GROUP BY 1, 2 ORDER BY 1, 2
"""
_PGMQ = """
SELECT msg_id, coalesce(message::text, 'null'), headers::text,
       CASE WHEN read_ct = 0 AND vt > now() THEN vt END
FROM {table} WHERE msg_id > %(after)s ORDER BY msg_id LIMIT %(page)s
"""
_PGMQ_COUNTS = """
SELECT CASE WHEN vt <= now() THEN 'pending' WHEN read_ct = 0 THEN 'delayed' ELSE 'in_flight' END,
       count(*)
FROM {table} GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """How many rows of a state became events of a topic, or would."""

    topic: str
    state: str
    events: int


def import_outbox(
    connection: Any,
    table: str,
    address: Callable[[str], str],
    *,
    with_failed: bool = False,
    dry_run: bool = False,
) -> list[Imported]:
    """Bring the undelivered rows of an ``outbox_events`` into the log, and rename the table.

    ``address`` gives the topic for a topic of the old table.  Ids, types, keys and headers stay.
    """
    old = _quoted(connection, table)
    states = ["pending", "in_flight", *(["failed"] if with_failed else [])]
    if not dry_run:
        _lock(connection, old)
    rows = database.execute(connection, _OUTBOX_COUNTS.format(table=old), {"states": states})
    found = _counted(connection, [(address(topic), state, count) for topic, state, count in rows])
    if not dry_run:
        _publish(connection, _outbox_pages(connection, old, states, address), found)
        _rename(connection, old, table)
    return found


def import_pgmq(
    connection: Any, queue: str, topic: str, *, dry_run: bool = False
) -> list[Imported]:
    """Bring the messages of a queue of pgmq into a topic, and rename its table.

    A delayed message stays delayed.  One that a worker has at this moment comes too.
    """
    table = f"pgmq.q_{queue.lower()}"
    old = _quoted(connection, table)
    if not dry_run:
        _lock(connection, old)
    rows = database.execute(connection, _PGMQ_COUNTS.format(table=old))
    found = _counted(connection, [(topic, state, count) for state, count in rows])
    if not dry_run:
        _publish(connection, _pgmq_pages(connection, old, topic), found)
        _rename(connection, old, table)
    return found


def _quoted(connection: Any, table: str) -> str:
    if database.dialect_of(connection) != "postgres":
        raise InvalidArgument("outboxes and queues are imported from PostgreSQL only")
    if not _NAME.fullmatch(table):
        raise InvalidArgument(
            f"{table[:100]!r} is no name of a table", hint="write TABLE or SCHEMA.TABLE"
        )
    old = ".".join(f'"{part}"' for part in table.split("."))
    if not _exists(connection, old):
        new = f'{old[:-1]}{SUFFIX}"'
        raise InvalidArgument(
            f"there is no table {table}",
            hint=f"it was imported already: its rows are in {table}{SUFFIX}"
            if _exists(connection, new)
            else "write TABLE or SCHEMA.TABLE; for pgmq the name of the queue",
        )
    return old


def _exists(connection: Any, quoted: str) -> bool:
    asked = "SELECT to_regclass(%(name)s) IS NOT NULL"
    ((found,),) = database.execute(connection, asked, {"name": quoted})
    return bool(found)


def _counted(connection: Any, rows: Iterable[tuple[str, str, int]]) -> list[Imported]:
    """The rows of each topic and state.  TopicNotFound, so that a dry run says it too."""
    counted: Counter[tuple[str, str]] = Counter()
    for topic, state, count in rows:
        counted[topic, state] += count
    known = known_topics(connection)
    for topic, _ in counted:
        run(connection, known.looked_up(topic))
    return [Imported(topic, state, count) for (topic, state), count in counted.items()]


def _lock(connection: Any, old: str) -> None:
    """Nobody writes from now on, and every row that is committed is seen.

    With a snapshot from before the lock, rows that came in between would be left in the old table.
    """
    ((level,),) = database.execute(connection, "SELECT current_setting('transaction_isolation')")
    if level != "read committed":
        raise WrongIsolation(
            f"an import needs the isolation level READ COMMITTED, not {level.upper()}",
            hint="nothing was imported: begin a transaction at READ COMMITTED",
        )
    database.execute(connection, f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
    database.execute(connection, f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE")


def _rename(connection: Any, old: str, table: str) -> None:
    name = table.rpartition(".")[2]
    database.execute(connection, f'ALTER TABLE {old} RENAME TO "{name}{SUFFIX}"')


def _publish(connection: Any, pages: Iterator[list[Message]], found: list[Imported]) -> None:
    published: Counter[str] = Counter()
    for page in pages:
        publish_batch(connection, page)
        published.update(each.topic for each in page)
    counted: Counter[str] = Counter()
    for each in found:
        counted[each.topic] += each.events
    if published != counted:
        raise InvalidArgument(
            f"{counted.total()} rows were counted and {published.total()} published",
            hint="nothing was imported: roll back",
        )


def _outbox_pages(
    connection: Any, old: str, states: list[str], address: Callable[[str], str]
) -> Iterator[list[Message]]:
    sql = _OUTBOX.format(table=old)
    after: datetime | str = "-infinity"
    after_id = uuid.UUID(int=0)
    while True:
        binds = {"states": states, "after": after, "after_id": after_id, "page": _PAGE}
        rows = database.execute(connection, sql, binds)
        if not rows:
            return
        yield [
            Message(
                address(topic), bytes(payload), key=key or None, type=kind,
                content_type=content_type, headers=_headers(headers), event_id=event_id,
            )
            for _, event_id, topic, kind, content_type, key, payload, headers in rows
        ]  # fmt: skip
        after, after_id = rows[-1][:2]


def _pgmq_pages(connection: Any, old: str, topic: str) -> Iterator[list[Message]]:
    after = -1
    while rows := database.execute(
        connection, _PGMQ.format(table=old), {"after": after, "page": _PAGE}
    ):
        yield [
            Message(
                topic, message.encode(), content_type="application/json",
                headers=_headers(headers), not_before=due,
            )
            for _, message, headers, due in rows
        ]  # fmt: skip
        after = rows[-1][0]


def _headers(text: str | None) -> Mapping[str, Any] | None:
    found = json.loads(text or "null")
    return found or None
