"""A window that is relayed again to a real Pulsar broker: exactly once, in a topic of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.backfill import requests
from ops.backfill.relay_again import place_of
from ops.backfill.requests import RELAY, Window
from ops.backfill.running import run_due
from ops.backfill.workers import workers
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, RelayBlock, Sink, SinkUnavailable
from tests.kit.backfill import filled, places, state_of
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM
from tests.relay.pulsar_broker import Broker

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]


def test_an_answer_that_is_lost_doubles_nothing(
    connection: psycopg.Connection[Any], database_url: str, broker: Broker, tmp_path: Path
) -> None:
    """Out of the archive.  Guard: the next attempt sends the same block, which the broker knows."""
    lost: list[RelayBlock] = []

    class Forgetful(InFront):
        def send_block(self, channel: Channel, block: RelayBlock) -> None:
            channel.send_block(block)
            if not lost:
                lost.append(block)
                raise SinkUnavailable("the answer was lost")

    def forgetful(address: str, beside: str) -> Sink:
        return Forgetful(open_sink(address, beside=beside))

    events = filled(connection, tmp_path, dropped=True)
    window = Window(from_sequence=5, to_sequence=40)
    asked = requests.request_backfill(connection, STREAM, RELAY, broker.address, window).request
    given = dataclasses.replace(places(tmp_path), sink=forgetful)
    (first,) = run_due(database_url, workers(given))
    assert (first.state, len(lost)) == ("waiting", 1)
    connection.execute("UPDATE penstock.backfill_requests SET not_before = '2020-01-01'")
    (second,) = run_due(database_url, workers(given))
    assert (second.state, second.attempt, second.done_events) == ("done", 2, 36)
    assert state_of(connection, asked)[0] == "done"
    place = place_of(connection, asked)
    name = f"persistent://public/default/{STREAM.replace('/', '.')}.{place}"
    found = [(int(each.properties()["ce_sequence"]), each.data()) for each in broker.read(name, 0)]
    assert found == [(each.sequence, bytes(each.payload)) for each in events[4:40]]
