"""What must hold for names, subscriptions and leases, also after concurrent changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from tests.kit.log import Connection, backend_pid, value, wait_until

#: Rows that must not exist, each with what is wrong about them.
BROKEN = {
    "a path that its parents do not give": """
        SELECT n.path FROM penstock.namespaces AS n
        LEFT JOIN penstock.namespaces AS p ON p.id = n.parent_id
        WHERE n.path <> COALESCE(p.path || '/', '') || n.name OR (p.id IS NULL AND n.parent_id <> 0)
    """,
    "an address that its namespace does not give": """
        SELECT t.address FROM penstock.topics AS t
        LEFT JOIN penstock.namespaces AS n ON n.id = t.namespace_id
        WHERE t.address IS DISTINCT FROM n.path || '/' || t.name
    """,
    "a topic without all its partitions": """
        SELECT t.address FROM penstock.topics AS t
        WHERE t.partitions <> (
            SELECT count(*) FROM penstock.partitions AS p WHERE p.topic_id = t.id)
    """,
    "a subscription of what is not there": """
        SELECT st.subscription_id, st.topic_id FROM penstock.subscription_topics AS st
        LEFT JOIN penstock.subscriptions AS s ON s.id = st.subscription_id
        LEFT JOIN penstock.topics AS t ON t.id = st.topic_id
        WHERE s.id IS NULL OR t.id IS NULL
    """,
    "a subscribed partition without lease or position": """
        SELECT st.subscription_id, p.id FROM penstock.subscription_topics AS st
        JOIN penstock.partitions AS p ON p.topic_id = st.topic_id
        WHERE NOT EXISTS (SELECT FROM penstock.leases AS l
                          WHERE l.subscription_id = st.subscription_id AND l.partition_id = p.id)
           OR NOT EXISTS (SELECT FROM penstock.positions AS q
                          WHERE q.subscription_id = st.subscription_id AND q.partition_id = p.id)
    """,
    "a lease that nobody subscribed": """
        SELECT l.subscription_id, l.partition_id FROM penstock.leases AS l
        JOIN penstock.partitions AS p ON p.id = l.partition_id
        WHERE NOT EXISTS (SELECT FROM penstock.subscription_topics AS st
                          WHERE st.subscription_id = l.subscription_id AND st.topic_id = p.topic_id)
    """,
    "a policy of what is not there": """
        SELECT r.topic_id FROM penstock.retention_policies AS r
        WHERE NOT EXISTS (SELECT FROM penstock.topics AS t WHERE t.id = r.topic_id)
    """,
    "a topic whose restriction its namespace does not give": """
        SELECT t.address FROM penstock.topics AS t
        WHERE t.restricted <> EXISTS (
            SELECT FROM penstock.namespace_grants AS g JOIN penstock.namespaces AS n
                ON n.id = g.namespace_id
            WHERE starts_with(t.address, n.path || '/'))
    """,
}


def broken(connection: Connection) -> dict[str, list[Any]]:
    """What is broken.  Empty when nothing is."""
    found = {what: connection.execute(query.encode()).fetchall() for what, query in BROKEN.items()}
    return {what: rows for what, rows in found.items() if rows}


def meets(
    let_go: Callable[[], object],
    watcher: Connection,
    url: str,
    work: Callable[[Connection], Any],
) -> tuple[bool, Any]:
    """Start ``work`` in a thread.

    Once it waits or is done, ``let_go`` of what it waits for. Returns whether it had to wait, and
    what it returned or raised.
    """
    with psycopg.connect(url, autocommit=True) as own, ThreadPoolExecutor(1) as pool:
        pid = backend_pid(own)
        future = pool.submit(work, own)
        wait_until(lambda: future.done() or _waits(watcher, pid), "it waits or is done")
        waited = not future.done()
        let_go()
        error = future.exception(30)
        return waited, error or future.result()


def _waits(watcher: Connection, pid: int) -> bool:
    return bool(
        value(
            watcher,
            "SELECT EXISTS (SELECT FROM pg_stat_activity"
            " WHERE pid = %s AND wait_event_type = 'Lock')",
            pid,
        )
    )
