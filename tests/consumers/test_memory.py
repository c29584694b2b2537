"""The daemon's memory during events, scrapes and probes."""

from __future__ import annotations

import psutil
import pytest

from tests.consumers.conftest import Connection, StartDaemon
from tests.consumers.process import Daemon, until
from tests.consumers.test_daemon import BOTH, done, publish_many

ROUND = 5_000
MIB = 1 << 20


@pytest.mark.long
def test_it_does_not_grow(log: Connection, database_url: str, daemons: StartDaemon) -> None:
    daemon = daemons(database_url, *BOTH, "--consumer", "billing=tests.consumers.handlers:ignore")
    daemon.wait_started()
    work(log, daemon, 2)
    before = psutil.Process(daemon.process.pid).memory_info().rss
    work(log, daemon, 12)
    grown = psutil.Process(daemon.process.pid).memory_info().rss - before
    assert grown < 8 * MIB, f"{grown / MIB:.1f} MiB"


def work(log: Connection, daemon: Daemon, rounds: int) -> None:
    """Events in rounds, and a hundred scrapes and probes with each."""
    for _ in range(rounds):
        wanted = done(log) + ROUND
        publish_many(log, ROUND)
        for _ in range(100):
            assert {daemon.get(page)[0] for page in ("/metrics", "/livez", "/readyz")} == {200}
        until(lambda: done(log) >= wanted, "the events")  # noqa: B023
