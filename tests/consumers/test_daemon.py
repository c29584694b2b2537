"""The daemon at work: events through, pages over HTTP, signals, failures of its workers."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path

import psycopg

from ops.sinks.jsonl import JsonlSink
from penstock import subscriptions
from penstock.database import migrate
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from resources.embedded import EmbeddedPostgres
from tests.consumers.conftest import PARTITIONS, TOPIC, Connection, StartDaemon, make_log
from tests.consumers.process import Daemon, until
from tests.kit.proof import proves
from tests.support import FAST_SETTINGS

RECORD = "billing=tests.consumers.handlers:record"
GATED = "billing=tests.consumers.handlers:behind_a_gate"
BOTH = ("--roles", "sequencer,consumers")


def publish_many(connection: Connection, count: int, start: int = 0) -> list[str]:
    """Publish numbered events, spread over the partitions, in one transaction."""
    payloads = [str(number) for number in range(start, start + count)]
    messages = [
        Message(TOPIC, payload.encode(), partition=number % PARTITIONS)
        for number, payload in enumerate(payloads)
    ]
    with connection.transaction():
        publish_batch(connection, messages)
    return payloads


def payloads(daemon: Daemon) -> list[str]:
    """What the recording handler was given."""
    return [line.split()[2] for line in daemon.handled()]


def lease_states(connection: Connection) -> set[tuple[str, str | None]]:
    """State and holder of the leases of ``billing``."""
    return {(each.state, each.holder) for each in subscriptions.lag(connection, "billing")}


def done(connection: Connection) -> int:
    """How many events ``billing`` has committed."""
    return sum(each.position for each in subscriptions.lag(connection, "billing"))


def head(daemon: Daemon, path: str) -> tuple[int, bool]:
    """The status of a HEAD request, and whether the answer ends after its headers."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as opened:
        opened.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: opened.recv(4096), b""))
    return int(answer.split()[1]), answer.endswith(b"\r\n\r\n")


def test_a_killed_daemon_is_replaced_with_leases_in_a_store(
    log: Connection, database_url: str, daemons: StartDaemon, redis_url: str
) -> None:
    """SIGKILL: what was committed stays so, the rest comes to the one that takes over, in order."""
    stream.configure_subscription(log, "billing", heartbeat_seconds=1, lease_seconds=3)
    store = f"{redis_url}?prefix={uuid.uuid4().hex}"
    one = (*BOTH, "--consumer", RECORD, "--coordination", store)
    first = daemons(database_url, *one).wait_started()
    publish_many(log, 20)
    until(lambda: len(first.handled()) == 20, "the first to see all events")
    first.kill()
    publish_many(log, 20, start=20)
    second = daemons(database_url, *one).wait_started()
    until(lambda: {str(each) for each in range(20, 40)} <= set(payloads(second)), "the rest")
    for partition in range(PARTITIONS):
        lines = [line.split() for line in second.handled()]
        sequences = [int(line[1]) for line in lines if int(line[0]) == partition]
        assert sequences == list(range(sequences[0], 21))
    assert lease_states(log) == {("AVAILABLE", None)}
    second.terminate()
    assert second.exit_code() == 0
    assert done(log) == 40


def test_events_go_through_and_the_pages_say_so(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    daemon = daemons(database_url, *BOTH, "--consumer", RECORD).wait_started()
    published = publish_many(log, 500)
    until(lambda: len(daemon.handled()) >= 500, "the handler to see all events")
    assert sorted(payloads(daemon), key=int) == published
    for partition in range(PARTITIONS):
        lines = [line.split() for line in daemon.handled()]
        sequences = [int(line[1]) for line in lines if int(line[0]) == partition]
        assert sequences == list(range(1, 251))
    until(lambda: done(log) == 500, "the commit")
    until(
        lambda: daemon.metric("penstock_consumed_events_total", "consumer:billing") == 500,
        "the count of what was consumed",
    )
    until(
        lambda: daemon.metric("penstock_sequenced_events_total", "sequencer") == 500,
        "the count of what was sequenced",
    )
    assert daemon.metric("penstock_worker_up", "sequencer") == 1
    assert daemon.metric("penstock_worker_restarts_total", "consumer:billing") == 0
    assert daemon.get("/livez") == (200, "ok\n")
    until(lambda: daemon.get("/readyz?verbose=1") == (200, "ok\n"), "the daemon to be ready")
    assert daemon.get("/nothing")[0] == 404
    assert head(daemon, "/livez") == (200, True)
    assert head(daemon, "/nothing") == (404, True)
    daemon.terminate()
    assert daemon.exit_code() == 0
    assert lease_states(log) == {("AVAILABLE", None)}


def gated(log: Connection, url: str, daemons: StartDaemon, *arguments: str) -> Daemon:
    """A daemon whose handler is in the middle of a batch of five."""
    messages = [Message(TOPIC, b"x", partition=0) for _ in range(5)]
    with log.transaction():
        publish_batch(log, messages)
    daemon = daemons(url, *BOTH, "--batch-consumer", GATED, *arguments).wait_started()
    until(lambda: daemon.handled() == ["begin 0 5"], "the handler to begin")
    return daemon


@proves("L8")
def test_sigterm_drains(log: Connection, database_url: str, daemons: StartDaemon) -> None:
    daemon = gated(log, database_url, daemons)
    daemon.terminate()
    until(lambda: daemon.get("/readyz") == (503, "not ready: draining\n"), "the daemon to drain")
    assert daemon.get("/livez")[0] == 200
    assert done(log) == 0
    daemon.gate.touch()
    assert daemon.exit_code() == 0
    assert daemon.handled() == ["begin 0 5", "end 0 5"]
    assert done(log) == 5
    assert lease_states(log) == {("AVAILABLE", None)}
    assert "Traceback" not in daemon.text()


@proves("L8")
def test_a_second_sigterm_aborts(log: Connection, database_url: str, daemons: StartDaemon) -> None:
    daemon = gated(log, database_url, daemons)
    daemon.terminate()
    until(lambda: daemon.says("/readyz", 503, "draining"), "the daemon to drain")
    daemon.terminate()
    assert daemon.exit_code() == 1
    assert daemon.handled() == ["begin 0 5"]
    assert done(log) == 0


def test_a_drain_that_takes_too_long_is_a_failure(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    daemon = gated(log, database_url, daemons, "--drain-seconds", "0.1")
    daemon.terminate()
    assert daemon.exit_code() == 1
    assert done(log) == 0
    assert [line["event"] for line in daemon.events()][-1].startswith("not drained")


def test_a_database_that_goes_away_and_comes_back(tmp_path: Path, daemons: StartDaemon) -> None:
    with EmbeddedPostgres(tmp_path / "postgres", settings=FAST_SETTINGS) as server:
        url = server.url("app")
        migrate.migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            make_log(connection)
        daemon = daemons(url, *BOTH, "--consumer", RECORD, soon=True).wait_started()
        until(lambda: daemon.get("/readyz")[0] == 200, "the daemon to be ready")
        daemon.wait_past_start()
        server.stop()
        answers: list[tuple[int, str]] = []

        def notices() -> bool:
            answers.append(daemon.get("/readyz"))
            return "cannot be used" in answers[-1][1]

        until(notices, "the daemon to notice")
        status, text = answers[-1]
        assert (status, text.partition(":")[0]) == (503, "not ready")
        assert len(text.splitlines()) == 1
        assert daemon.get("/livez") == (200, "ok\n")
        assert daemon.get("/metrics")[0] == 200
        server.start()
        assert server.url("app") == url
        until(lambda: daemon.get("/readyz")[0] == 200, "the daemon to be ready again")
        with psycopg.connect(url, autocommit=True) as connection:
            publish_many(connection, 10)
        until(lambda: len(set(payloads(daemon))) == 10, "the events after the outage")
        daemon.terminate()
        assert daemon.exit_code() == 0


def test_workers_that_lose_their_connection_go_on(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    daemon = daemons(database_url, *BOTH, "--consumer", RECORD, soon=True).wait_started()
    publish_many(log, 10)
    until(lambda: done(log) == 10, "the first events")
    daemon.wait_past_start()
    killed = log.execute(
        "SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name LIKE 'penstock %'"
    ).fetchall()
    assert {"penstock sequencer", "penstock billing"} <= {name for name, _ in killed}
    publish_many(log, 10, start=10)
    until(lambda: len(set(payloads(daemon))) == 20, "the events after the failure")
    until(lambda: done(log) == 20, "the commit after the failure")
    assert daemon.metric("penstock_worker_restarts_total", "sequencer") == 1
    assert daemon.metric("penstock_sequenced_events_total", "sequencer") == 20
    assert daemon.metric("penstock_consumed_events_total", "consumer:billing") >= 20
    assert any("sequencer failed, again in" in line["event"] for line in daemon.events())


def test_a_notification_that_is_no_list_of_partitions_does_no_harm(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    """Any login may notify any channel."""
    daemon = daemons(database_url, *BOTH, "--consumer", RECORD).wait_started()
    publish_many(log, 10)
    until(lambda: done(log) == 10, "the events: now the consumer listens")
    for payload in ("nonsense", "", "1,,2"):
        log.execute("SELECT pg_notify('penstock_log', %s)", [payload])
    publish_many(log, 10, start=10)
    until(lambda: done(log) == 20, "the events after the notifications")
    assert daemon.metric("penstock_worker_restarts_total", "consumer:billing") == 0


def test_an_earlier_run_of_a_fixed_id_is_waited_for(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    """Killed, it still counts as running until its lease ends."""
    stream.join(log, "billing", "me", 1.0)
    daemon = daemons(database_url, *BOTH, "--consumer", RECORD, "--consumer-id", "me")
    until(lambda: "waits: consumer" in daemon.text(), "the daemon to say that it waits")
    log.execute("UPDATE penstock.consumers SET deadline = clock_timestamp() WHERE id = 'me'")
    publish_many(log, 4)
    until(lambda: done(log) == 4, "the events, after the lease has ended")
    assert daemon.metric("penstock_worker_restarts_total", "consumer:billing") == 0


def test_the_relay_writes_what_is_published(
    log: Connection, database_url: str, daemons: StartDaemon, tmp_path: Path
) -> None:
    given = ("--roles", "sequencer,relay", "--relay", f"export=jsonl:{tmp_path / 'out'}")
    daemon = daemons(database_url, *given).wait_started()
    published = publish_many(log, 40)
    until(
        lambda: daemon.metric("penstock_relayed_events_total", "relay:export") == 40,
        "the relay to count all events",
    )
    blocks = daemon.metric("penstock_relayed_batches_total", "relay:export")
    assert daemon.metric("penstock_handler_seconds_count", "relay:export") == blocks > 0
    daemon.terminate()
    assert daemon.exit_code() == 0
    sink = JsonlSink(tmp_path / "out")
    lines = [
        json.loads(line)
        for partition in range(PARTITIONS)
        for line in sink.path(f"{TOPIC}//1", partition).read_text().splitlines()
    ]
    assert len(lines) == len({uuid.UUID(line["id"]) for line in lines}) == len(published)
    assert {each.position for each in subscriptions.lag(log, "export")} == {20}
