"""Relays to sinks that tell what they hold: killed, paused past their lease, servers restarted.

Each sink stores 50,000 events (``long``), and a small form stays for every day.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from ops.sinks.address import configured_sink
from ops.sinks.nats_jetstream import NatsSink
from penstock import database, log
from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.relay.chaos import PARTITIONS, Chaos, Difference, chaos, compare
from tests.relay.stores import StreamsServer
from tests.support import missing
from tools.servers import MYSQL, MySQLServer
from tools.servers.nats import NatsServer
from tools.servers.server import DURABLE

pytestmark = pytest.mark.timeout(900)

TOPIC = "bank/accounts"
EXACT = Difference(lost=0, doubled=0, in_order=True)

Found = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Place:
    """A sink with a server of its own."""

    address: str
    restart: Callable[[], None]
    #: Sequence and payload of every event of a partition, as they lie there.
    read: Callable[[int], Found]


def _redis(folder: Path, stack: ExitStack) -> Place:
    server = stack.enter_context(StreamsServer(folder))

    def read(partition: int) -> Found:
        entries = server.entries(f"all:{TOPIC}:{partition}")
        return [(int(entry.partition("-")[2]), fields[b"data"]) for entry, fields in entries]

    return Place(f"redis://127.0.0.1:{server.port}/all", server.restart, read)


def _nats(folder: Path, stack: ExitStack) -> Place:
    server = stack.enter_context(NatsServer(folder))
    address = f"nats://{server.address}/all?create=true"

    def read(partition: int) -> Found:
        sink = configured_sink(address)
        assert isinstance(sink, NatsSink)
        subjects, found = f"{sink.subjects(TOPIC, partition)}.>", []
        number = 0
        while True:
            asked = {"seq": number + 1, "next_by_subj": subjects}
            answer = sink.connection.api(f"STREAM.MSG.GET.{sink.stream}", asked)
            if "message" not in answer:
                break
            message = answer["message"]
            number = message["seq"]
            headers = base64.b64decode(message["hdrs"]).decode()
            sequence = int(headers.partition("ce-sequence: ")[2].partition("\r")[0])
            found.append((sequence, base64.b64decode(message.get("data", ""))))
        sink.close()
        return found

    return Place(address, server.restart, read)


def _penstock(folder: Path, stack: ExitStack) -> Place:
    server = MySQLServer(folder, MYSQL, settings=DURABLE)
    stack.enter_context(server)
    url = server.url("there")
    parts = urlsplit(url)
    migrate(url)
    with database.connect(url) as own:
        names.create_topic(own, TOPIC, PARTITIONS, create_namespaces=True)
    login = {"USERNAME": unquote(parts.username or ""), "PASSWORD": unquote(parts.password or "")}
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in login.items():
        patch.setenv(f"PENSTOCK_SINK_{name}", value)

    def restart() -> None:
        server._wanted_port = server.port
        server.kill()
        server.start()

    def read(partition: int) -> Found:
        with database.connect(url) as own:
            sequence_round(own, max_passes=10_000)
            events = log.fetch(own, TOPIC, partition, 1, 100_000)
        return [(each.headers["penstock-origin"]["sequence"], each.payload) for each in events]

    return Place(f"penstock+mysql://{parts.hostname}:{parts.port}/there", restart, read)


PLACES = {"redis": _redis, "nats": _nats, "penstock": _penstock}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each of them."""
    with ExitStack() as stack:
        try:
            made = PLACES[request.param](tmp_path / "server", stack)
        except PenstockError as error:
            missing(request.param, error)
        yield made


@pytest.fixture
def made(connection: psycopg.Connection[Any], database_url: str, place: Place) -> Iterator[Chaos]:
    """The log whose relay writes there."""
    fields = {"topic": TOPIC, "sink": place.address, "restart": place.restart}
    with chaos(connection, database_url, timeout=120, **fields) as log_:
        yield log_


def difference(made: Chaos, place: Place) -> Difference:
    """What the sink holds, against the log."""
    parts = [compare(made.expected(each), place.read(each)) for each in range(PARTITIONS)]
    return Difference(
        sum(each.lost for each in parts),
        sum(each.doubled for each in parts),
        all(each.in_order for each in parts),
    )


def test_killed_paused_and_restarted_it_is_exact(made: Chaos, place: Place) -> None:
    made.publish(4_000)
    made.run(kills=1, pauses=1, restarts=1)
    assert (made.kills, made.pauses, made.restarts) == (1, 1, 1)
    assert difference(made, place) == EXACT


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_thousand_events_are_exact(made: Chaos, place: Place) -> None:
    made.seed = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))
    made.publish(50_000)
    made.run(kills=16, pauses=6, restarts=3)
    assert (made.kills, made.pauses, made.restarts) == (16, 6, 3)
    assert difference(made, place) == EXACT
