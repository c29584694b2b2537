"""Dagster alone, without any daemon: its schedules, sensors and runs carry events all the way.

`dagster dev` runs as users run it, and is asked over GraphQL as its page asks.
"""

from __future__ import annotations

import http.server
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
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
from tests.kit.proof import proves

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


@proves("Dagster alone is enough")
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
@pytest.mark.parametrize("engine", ["sql", "spark"])
def test_each_duty_is_launched_over_graphql(tmp_path: Path, engine: str) -> None:
    """Sequence, relay, sweep, clean and backfill, each as a run of its own with its engine."""
    prepared(tmp_path, 0)
    with alone(tmp_path) as (dev, connection):
        duties_with(engine, dev, connection, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_backfill_of_fifty_partitions_over_graphql(tmp_path: Path) -> None:
    """A log epoch in each of fifty hours, archived by one backfill of the page."""
    prepared(tmp_path, 0)
    with alone(tmp_path) as (dev, connection):
        fifty_hours(dev, connection)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_flipped_bit_stops_its_topic_until_a_sensor_has_it_mended(tmp_path: Path) -> None:
    """Retention drops nothing of it and its run fails, a webhook is told, the other topic goes on.

    Then a sensor asks for the copy, another one for the run that makes it, and retention goes on.
    """
    prepared(tmp_path, EPOCH)
    with hook() as (address, told), alone(tmp_path, PENSTOCK_WEBHOOK_URL=address) as found:
        dev, connection = found
        for job in ("sequence", "relay", "seal"):
            dev.done(job)
        archived(dev, connection)
        assert told == []
        flip_a_bit(connection, tmp_path)
        assert dev.ended(dev.launch("clean")) == "FAILURE"
        assert low_sequences(connection) == {TOPIC: 1, RETURNS: EPOCH + 1}
        wait_until(dev, lambda: {each["job"] for each in told} == {"clean"})
        mended_by_a_sensor(dev, connection)


@contextmanager
def alone(folder: Path, **environment: str) -> Iterator[tuple[Dev, Connection]]:
    """A running Dagster that has applied its policies, and its database."""
    with running(folder, POLICIES, **environment) as dev:
        dev.wait_until_it_answers()
        with connect(dev.embedded.url()) as connection:
            dev.done("policies")
            yield dev, connection


def duties_with(engine: str, dev: Dev, connection: Connection, folder: Path) -> None:
    """The five duties, and what has to hold after them.

    Sensors may be quicker: then a run finds nothing to do, and what has to hold holds all the same.
    """
    for topic in (TOPIC, RETURNS):
        publish(connection, topic, EPOCH)
    for duty in ("sequence", "relay", "sweep"):
        dev.done(duty, duty_config(duty, engine))
    wait_until(dev, lambda: relayed(folder) == [*range(1, EPOCH + 1)])
    dev.done("seal")
    archived(dev, connection)
    dev.done("clean", duty_config("clean", engine))
    assert low_sequences(connection) == {TOPIC: EPOCH + 1, RETURNS: EPOCH + 1}
    asked = request_backfill(connection, TOPIC, REHYDRATE).request
    dev.done("backfill", duty_config("backfill", engine, request=asked))
    wait_until(dev, lambda: state(connection, asked) == "done")


def archived(dev: Dev, connection: Connection) -> None:
    """Archive every hour of both topics, as the page does it."""
    hours = sorted({hour_name(each.hour) for each in changed_hours(connection)})
    for topic in ("orders", "returns"):
        dev.backfilled(["penstock", f"shop_{topic}", f"{topic}_archive"], hours)


def fifty_hours(dev: Dev, connection: Connection) -> None:
    """The database's log epochs of fifty hours, one in each, and the backfill of all."""
    publish(connection, RETURNS, HOURS)
    sequence(dev.embedded.url())
    seal(connection, RETURNS, max_events=1)
    connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - (%s - log_epoch) * interval '1 h'",
        (HOURS,),
    )
    dev.ask(RELOAD)  # for the hours before the first one that it knew
    epochs = log_epochs(connection, RETURNS)
    hours = sorted({hour_name(each.sealed_at) for each in epochs if each.sealed_at})
    assert len(hours) == HOURS
    archive = ["penstock", "shop_returns", "returns_archive"]
    assert dev.backfilled(archive, hours)["numFailed"] == 0
    assert {each.targets for each in log_epochs(connection, RETURNS)} == {("local",)}
    assert set(dev.made(archive, hours)) == set(hours)
    # Dagster may lose one of them as it counts (test_automation.py), and automation makes it again.
    wait_until(dev, lambda: dev.partitions(archive)["numMaterialized"] >= HOURS)
    # The automation may have asked for some of the hours too, and its checks are under way.
    wait_until(dev, lambda: set(dev.checked(archive).values()) == {"SUCCEEDED"})


def flip_a_bit(connection: Connection, folder: Path) -> None:
    """In the events of the archived file of the topic that is relayed: an id is another one."""
    (epoch,) = log_epochs(connection, TOPIC)
    (copy,) = [each for each in copies_of(connection, TOPIC) if each.log_epoch == epoch.log_epoch]
    (file,) = (folder / "archive").rglob(Path(copy.location).name)
    assert read_contents(file)[0].key == (0, epoch.log_epoch)
    whole = file.read_bytes()
    flipped = (
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for place in range(len(whole))
    )
    file.write_bytes(next(each for each in flipped if ids_of(each) != ids_of(whole)))


def ids_of(file: bytes) -> Any:
    """The ids of the events in a file; None when it cannot be read.

    There are bits that change nothing of them, those of statistics and of headers.
    """
    try:
        return pq.read_table(io.BytesIO(file), columns=["event_id"]).to_pylist()
    except (OSError, ValueError, pa.ArrowException):
        return None


def mended_by_a_sensor(dev: Dev, connection: Connection) -> None:
    """A sensor asks for what is damaged, another one for its run; then retention goes on."""
    wait_until(dev, lambda: _copies_asked(connection) == {"done"})
    assert any(
        each["key"] == "penstock/request" for run in dev.runs("backfill") for each in run["tags"]
    )
    dev.done("clean")
    assert low_sequences(connection)[TOPIC] == EPOCH + 1


def _copies_asked(connection: Connection) -> set[str]:
    return {each.state for each in list_backfills(connection) if each.kind == COPY}
