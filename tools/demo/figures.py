"""What the demo measures and compares: four ways to the same balances."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from penstock import subscriptions
from tools.demo import faults
from tools.demo.stage import SUBSCRIPTION

Balances = dict[int, int]


@dataclass(frozen=True, slots=True)
class Latency:
    """From COMMIT of the publishing transaction to the handler, in milliseconds."""

    p50: float
    p99: float
    events: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What the database counted, and the consumers' commits that were refused."""

    events: int
    rolled_back: int
    redeliveries: int
    disorder: int
    take_overs: int
    refused_commits: int
    sessions_ended: int


def bank(connection: psycopg.Connection[tuple[Any, ...]]) -> Balances:
    """The true balances: pgbench's own table, for the accounts that are not at 0."""
    return dict(
        connection.execute(
            "SELECT aid, abalance FROM pgbench_accounts WHERE aid <= 2000 AND abalance <> 0"
        ).fetchall()
    )


def projected(connection: psycopg.Connection[tuple[Any, ...]]) -> Balances:
    """The balances in the consumers' projection."""
    rows = connection.execute("SELECT account, balance FROM demo.projection WHERE balance <> 0")
    return dict(rows.fetchall())


def relayed(directory: Path) -> Balances:
    """The balances as the sum over the relayed files."""
    sums: Counter[int] = Counter()
    for file in sorted(directory.rglob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                told = json.loads(line)["data"]
                sums[told["account"]] += told["delta"]
    return {account: balance for account, balance in sums.items() if balance}


def relayed_events(directory: Path) -> int:
    """How many lines the relay wrote."""
    return sum(sum(1 for _ in file.open(encoding="utf-8")) for file in directory.rglob("*.jsonl"))


def latency(connection: psycopg.Connection[tuple[Any, ...]]) -> Latency:
    """The latencies.

    The server keeps the time of every commit, the projection that of its effect.
    """
    row = connection.execute(
        """
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY waited),
               percentile_cont(0.99) WITHIN GROUP (ORDER BY waited), count(*)
        FROM (
            SELECT extract(epoch FROM h.handled_at - pg_xact_commit_timestamp(e.tx::xid)) * 1000
                   AS waited
            FROM demo.handled AS h JOIN penstock.events AS e ON e.event_id = h.event_id
        ) AS each
        """
    ).fetchone()
    assert row is not None
    return Latency(float(row[0]), float(row[1]), row[2])


def counts(connection: psycopg.Connection[tuple[Any, ...]], refused_commits: int) -> Counts:
    """Figures from the database, and the refused commits from the consumers' logs."""
    row = connection.execute(
        """
        SELECT (SELECT count(*) FROM demo.handled),
               (SELECT last_value + is_called::integer FROM demo.deliveries),
               (SELECT COALESCE(sum(disorder), 0) FROM demo.projection),
               (SELECT last_value FROM penstock.events_id)
        """
    ).fetchone()
    assert row is not None
    handled, delivered, disorder, taken_ids = (int(value) for value in row)
    return Counts(
        events=faults.published(connection),
        rolled_back=taken_ids - faults.published(connection),
        redeliveries=delivered - handled,
        disorder=disorder,
        take_overs=subscriptions.take_overs(connection, SUBSCRIPTION),
        refused_commits=refused_commits,
        sessions_ended=faults.sessions_ended(connection),
    )
