"""Blocks to Pulsar over Spark, whose executors are killed with a block sent and not committed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ops.duties.setup import Setup
from ops.duties.units import MAIN
from penstock.spark.options import DatabaseAddress
from tests.contract.databases import ContractDatabase
from tests.duties.cluster import BEFORE, Job
from tests.duties.test_executors import clusters, outcomes_of
from tests.kit import stream as streams
from tests.kit.stream import STREAM, SUBSCRIPTION
from tests.relay.pulsar_broker import Broker

__all__ = ["clusters"]

pytestmark = [pytest.mark.spark, pytest.mark.pulsar, pytest.mark.long, pytest.mark.timeout(900)]

PARTITIONS, EVENTS, KILLS = 4, 5_000, 3


def test_pulsar_has_each_event_once_and_in_order(
    clusters: Callable[[str], subprocess.Popen[str]],
    db: ContractDatabase,
    broker: Broker,
    tmp_path: Path,
) -> None:
    """Guards: the recorded block, the fence of the commit, the exclusive producer."""
    namespace = f"public/{db.engine}"
    broker.admin("PUT", f"namespaces/{namespace}")
    address = broker.address.replace("public/default", namespace)
    setup = Setup({MAIN: DatabaseAddress(db.url)}, sinks={(MAIN, SUBSCRIPTION): address})
    with closing(db.connect()) as own:
        streams.filled(own, partitions=PARTITIONS, events=EVENTS)
        streams.short_leases(own, 2)
        for number in range(KILLS + 1):
            marker = tmp_path / f"marker{number}"
            nth = 1 if number < KILLS else 1_000_000
            job = Job("relay", setup, marker, "relay", "commit", BEFORE, nth)
            outcomes_of(clusters(db.engine), job, tmp_path / f"job{number}")
            assert marker.exists() == (number < KILLS), "nobody died, or one too many"
            if number < KILLS:
                streams.more(own, PARTITIONS, EVENTS, start=1 + EVENTS * (number + 1))
    name = f"persistent://{namespace}/{STREAM.replace('/', '.')}"
    for partition in range(PARTITIONS):
        assert broker.sequences(name, partition) == list(range(1, EVENTS * (KILLS + 1) + 1))
