"""How near a webhook that takes 50 ms a call comes to what its concurrency allows."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from penstock.subscriptions import stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.relay.receivers import SECRET

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY, SECONDS = 16, 0.05
TOPIC, SUBSCRIPTION = "bank/accounts", "to-the-hook"


@pytest.fixture
def port() -> Iterator[int]:
    """A slow receiver in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http_receiver", str(SECONDS)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


@pytest.mark.parametrize(
    ("events", "most"), [(640, 2.0), pytest.param(10_000, 1.2, marks=pytest.mark.long)]
)
def test_calls_of_different_keys_fill_the_time(
    connection: psycopg.Connection[Any], database_url: str, port: int, events: int, most: float
) -> None:
    """The small form only shows that calls are made at the same time: machines are busy."""
    names.create_topic(connection, TOPIC, 1, create_namespaces=True)
    stream.subscribe(connection, SUBSCRIPTION, [TOPIC])
    connection.execute(
        "SELECT penstock.publish(topic => %s, payload => '\\x7b7d', key => 'k' || g %% 1000,"
        " type => 't') FROM generate_series(1, %s::int) AS g",
        (TOPIC, events),
    )
    sequence_round(connection, max_passes=10_000)
    environ = {
        "PENSTOCK_WEBHOOK_SECRET": SECRET,
        "PENSTOCK_WEBHOOK_ALLOW": f"http {port} 127.0.0.1/32",
    }
    address = f"webhook+http://127.0.0.1:{port}/in#concurrency={CONCURRENCY}"
    sink = open_sink(address, environ=environ)
    begin = time.monotonic()
    result = Relay(database_url, SUBSCRIPTION, sink).run_for(110)
    took = time.monotonic() - begin
    ideal = events * SECONDS / CONCURRENCY
    logging.getLogger(__name__).warning("%d events: %.2f of the ideal", events, took / ideal)
    assert (result.events, result.drained) == (events, True)
    assert took <= ideal * most + 1  # a second for joining and the first lease
