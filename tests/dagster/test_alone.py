"""Dagster alone, without any daemon: its schedules, sensors and runs carry events all the way.

`dagster dev` runs as users run it, and is asked over GraphQL as its page asks.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from dagster_project.common import hour_name
from ops.backfill.requests import COPY, REHYDRATE, list_backfills, request_backfill
from ops.hours import changed_hours
from ops.seal import copies_of, log_epochs, seal
from penstock.archive.contents import read_contents
from penstock.database import call, connect, migrate
from penstock.upkeep.sequencing import sequence
from tests.dagster.conftest import TOPIC
from tests.dagster.dev import RELOAD, Dev, duty_config, running

if TYPE_CHECKING:
    from penstock.database import Connection

RETURNS = "shop/returns"
EPOCH = 10
HOURS = 50
#: A tick of the slowest sensor, a cron of five minutes, and the runs that wait for each other.
PATIENCE_SECONDS = 900

POLICIES = f"""
targets: {{local: archive}}
topics:
  {TOPIC}:
    seal: {{max_events: {EPOCH}, max_age: 0s}}
    archive: [local]
    retention: {{minimum_age: 0s, copies: 1}}
  {RETURNS}:
    seal: {{max_events: 1, max_age: 0s}}
    archive: [local]
    retention: {{minimum_age: 0s, copies: 1}}
relays:
  shop-file: {{topic: {TOPIC}, sink: "jsonl:relayed"}}
limits: {{unsequenced: 0, relay_lag: 0, consumer_lag: 1h}}
"""


@contextmanager
def hook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A webhook, and what it was told."""
    told: list[dict[str, str]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        server.server_close()


def wait_until(dev: Dev, what: Callable[[], bool]) -> None:
    """Until something holds that Dagster has to see to."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert dev.process.poll() is None and time.monotonic() < deadline, dev.said()
        time.sleep(1)


def prepared(folder: Path, events: int) -> None:
    """Two topics with events, before Dagster starts: it reads the topics when it loads."""
    from resources.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(folder / "postgres")
    server.start()
    migrate.migrate(server.url())
    with connect(server.url()) as connection:
        for topic in (TOPIC, RETURNS):
            penstock.create_topic(connection, topic, 1, create_namespaces=True)
            publish(connection, topic, events)


def publish(connection: Connection, topic: str, events: int) -> None:
    """So many events."""
    penstock.publish_batch(connection, [penstock.Message(topic, b"x") for _ in range(events)])


def low_sequences(connection: Connection) -> dict[str, int]:
    """Where each topic begins in the database."""
    return {
        topic: call(connection, "low_sequences", topic=topic)[0][1] for topic in (TOPIC, RETURNS)
    }


def relayed(folder: Path) -> list[int]:
    """The sequences in the sink, in their order."""
    lines = [
        line for file in (folder / "relayed").rglob("*.jsonl") for line in file.open()
    ] if (folder / "relayed").exists() else []  # fmt: skip
    return [int(json.loads(line)["sequence"]) for line in lines]


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("engine", ["sql", "spark"])
def test_schedules_and_sensors_alone_carry_events_through_all_stations(
    tmp_path: Path, engine: str
) -> None:
    """Nobody launches anything but `clean`, which else comes once an hour."""
    prepared(tmp_path, 2 * EPOCH)
    with running(tmp_path, POLICIES, PENSTOCK_ENGINE=engine) as dev:
        dev.wait_until_it_answers()
        with connect(dev.embedded.url()) as connection:
            wait_until(dev, lambda: relayed(tmp_path) == [*range(1, 2 * EPOCH + 1)])
            wait_until(dev, lambda: len(verified(connection)) == 2 + 2 * EPOCH)
            wait_until(dev, lambda: bool(dev.runs("policies")))
            wait_until(dev, lambda: bool(dev.runs("sweep")))
            dev.done("clean")
            assert low_sequences(connection) == {TOPIC: 2 * EPOCH + 1, RETURNS: 2 * EPOCH + 1}
            asked = request_backfill(connection, TOPIC, REHYDRATE).request
            wait_until(dev, lambda: state(connection, asked) == "done")


def verified(connection: Connection) -> list[Any]:
    """The copies that were read back."""
    return [
        each
        for topic in (TOPIC, RETURNS)
        for each in copies_of(connection, topic)
        if each.state == "verified"
    ]


def state(connection: Connection, request: int) -> str:
    """How far a backfill request is."""
    (found,) = list_backfills(connection, request=request)
    return found.state


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_each_duty_over_graphql_a_backfill_and_a_flipped_bit(tmp_path: Path) -> None:
    """Each duty with each engine; fifty hours at once; one bit, and what becomes of it."""
    prepared(tmp_path, 0)
    with ExitStack() as stack:
        address, told = stack.enter_context(hook())
        dev = stack.enter_context(running(tmp_path, POLICIES, PENSTOCK_WEBHOOK_URL=address))
        dev.wait_until_it_answers()
        connection = stack.enter_context(connect(dev.embedded.url()))
        dev.done("policies")
        for done, engine in enumerate(("sql", "spark")):
            duties_with(engine, dev, connection, tmp_path, done * EPOCH)
        fifty_hours(dev, connection)
        assert told == []
        a_flipped_bit(dev, connection, tmp_path)
        wait_until(dev, lambda: {each["job"] for each in told} == {"clean"})
        mended_by_a_sensor(dev, connection)


def duties_with(engine: str, dev: Dev, connection: Connection, folder: Path, before: int) -> None:
    """Sequence, relay, sweep, clean and backfill, launched with their engine.

    Sensors may be quicker: then a run finds nothing to do, and what has to hold holds all the same.
    """
    for topic in (TOPIC, RETURNS):
        publish(connection, topic, EPOCH)
    for duty in ("sequence", "relay", "sweep"):
        dev.done(duty, duty_config(duty, engine))
    end = before + EPOCH
    wait_until(dev, lambda: relayed(folder) == [*range(1, end + 1)])
    dev.done("seal")
    hours = sorted({hour_name(each.hour) for each in changed_hours(connection)})
    for topic in ("shop_orders", "shop_returns"):
        dev.backfilled(["penstock", topic, "archive"], hours)
    dev.done("clean", duty_config("clean", engine))
    assert low_sequences(connection) == {TOPIC: end + 1, RETURNS: end + 1}
    asked = request_backfill(connection, TOPIC, REHYDRATE).request
    dev.done("backfill", duty_config("backfill", engine, request=asked))
    wait_until(dev, lambda: state(connection, asked) == "done")


def fifty_hours(dev: Dev, connection: Connection) -> None:
    """A log epoch in each of fifty hours, archived by one backfill of the page."""
    first = len(log_epochs(connection, RETURNS)) + 1
    publish(connection, RETURNS, HOURS)
    sequence(dev.embedded.url())
    seal(connection, RETURNS, max_events=1)
    connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - (%s - log_epoch) * interval '1 h'"
        " WHERE log_epoch >= %s AND last_sequence = first_sequence",
        (first + HOURS - 1, first),
    )
    dev.ask(RELOAD)  # for the hours before the first one that it knew
    hours = sorted({hour_name(each.sealed_at) for each in epochs_since(connection, first)})
    assert len(hours) == HOURS
    archive = ["penstock", "shop_returns", "archive"]
    stats = dev.backfilled(archive, hours)
    assert stats["numFailed"] == 0 and stats["numMaterialized"] >= HOURS
    assert set(dev.checked(archive).values()) == {"SUCCEEDED"}
    assert {each.targets for each in epochs_since(connection, first)} == {("local",)}


def epochs_since(connection: Connection, first: int) -> list[Any]:
    """The log epochs of the topic with the fifty hours."""
    return [each for each in log_epochs(connection, RETURNS) if each.log_epoch >= first]


def a_flipped_bit(dev: Dev, connection: Connection, folder: Path) -> None:
    """Retention drops nothing of that topic and its run fails; the other topic goes on."""
    before = low_sequences(connection)
    publish(connection, TOPIC, EPOCH)
    for job in ("sequence", "relay", "seal"):
        dev.done(job)
    wait_until(dev, lambda: len(log_epochs(connection, TOPIC)) == 3)
    newest = log_epochs(connection, TOPIC)[-1]
    assert newest.sealed_at is not None
    dev.backfilled(["penstock", "shop_orders", "archive"], [hour_name(newest.sealed_at)])
    files = [
        each
        for each in (folder / "archive").glob("*/sealed_date=*/*.parquet")
        if read_contents(each)[0].key == (0, newest.log_epoch)
    ]
    file = max(files, key=lambda each: each.stat().st_mtime)
    whole = file.read_bytes()
    place = len(whole) // 3
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert dev.ended(dev.launch("clean")) == "FAILURE"
    after = low_sequences(connection)
    assert after[TOPIC] == before[TOPIC]
    assert after[RETURNS] == 2 * EPOCH + HOURS + 1


def mended_by_a_sensor(dev: Dev, connection: Connection) -> None:
    """A sensor asks for what is damaged, another one for its run; then retention goes on."""
    wait_until(dev, lambda: _copies_asked(connection) == {"done"})
    assert any(
        each["key"] == "penstock/request" for run in dev.runs("backfill") for each in run["tags"]
    )
    dev.done("clean")
    assert low_sequences(connection)[TOPIC] == 3 * EPOCH + 1


def _copies_asked(connection: Connection) -> set[str]:
    return {each.state for each in list_backfills(connection) if each.kind == COPY}
