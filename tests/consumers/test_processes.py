"""A daemon of several processes: one is killed, all are drained, the first one dies."""

from __future__ import annotations

import contextlib
import os
import re
import signal

import psutil
import pytest

from penstock import subscriptions
from penstock.subscriptions import stream
from tests.consumers.conftest import Connection, StartDaemon
from tests.consumers.process import Daemon, until
from tests.consumers.test_daemon import (
    BOTH,
    GATED,
    RECORD,
    done,
    lease_states,
    payloads,
    publish_many,
)
from tests.kit.proof import proves

TWO = (*BOTH, "--processes", "2")


def children(daemon: Daemon) -> list[int]:
    """The pids of the daemon's processes."""
    found = []
    for child in psutil.Process(daemon.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if "penstock.upkeep.child" in child.cmdline():
                found.append(child.pid)
    return sorted(found)


def ready(daemon: Daemon) -> bool:
    """Whether all its processes have started."""
    return daemon.get("/readyz")[0] == 200


def holders(connection: Connection) -> set[str]:
    """Who holds the partitions of ``billing``."""
    return {each.holder for each in subscriptions.lag(connection, "billing") if each.holder}


def shorter_leases(connection: Connection) -> None:
    stream.configure_subscription(
        connection, "billing", heartbeat_seconds=1, lease_seconds=3, release_seconds=3
    )


def stands_still_and_goes_on(daemon: Daemon, pid: int) -> None:
    """SIGSTOP: alive for the kernel, and not for the daemon."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: re.search(r"process:\d does not answer", daemon.get("/livez")[1]), "the verdict")
    os.kill(pid, signal.SIGCONT)
    until(lambda: daemon.get("/livez")[0] == 200, "its life")


@proves("D5 over crashes")
@proves("livez")
def test_one_is_killed_and_started_again_and_its_partitions_are_served(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    shorter_leases(log)
    given = ("--consumer", RECORD, "--stuck-seconds", "2")
    daemon = daemons(database_url, *TWO, *given, soon=True).wait_started()
    until(lambda: ready(daemon), "both processes")
    before = children(daemon)
    assert len(before) == 2
    until(lambda: daemon.get("/livez") == (200, "ok\n"), "its life")
    stands_still_and_goes_on(daemon, before[1])
    daemon.wait_past_start()
    publish_many(log, 100)
    until(lambda: done(log) == 100, "the first events")
    metric = "penstock_consumed_events_total"
    until(lambda: daemon.metric(metric, "consumer:billing") == 100, "their count")
    os.kill(before[1], signal.SIGKILL)
    until(lambda: len(set(children(daemon)) - set(before)) == 1, "a new process")
    until(lambda: ready(daemon), "both processes again")
    publish_many(log, 100, start=100)
    until(lambda: done(log) == 200, "the events after the kill")
    assert set(payloads(daemon)) == {str(number) for number in range(200)}
    assert before[0] in children(daemon)
    # Counters of the process that was killed count on.
    until(lambda: daemon.metric(metric, "consumer:billing") >= 200, "the count over both lives")
    restarts = {n: daemon.metric("penstock_worker_restarts_total", f"process:{n}") for n in (1, 2)}
    assert sum(restarts.values()) == 1
    assert any("ended, killed by SIGKILL" in line["event"] for line in daemon.events())
    daemon.terminate()
    assert daemon.exit_code() == 0
    assert lease_states(log) == {("AVAILABLE", None)}


@proves("L8")
def test_sigterm_drains_all(log: Connection, database_url: str, daemons: StartDaemon) -> None:
    daemon = daemons(database_url, *TWO, "--batch-consumer", GATED, "--consumer-id", "me")
    daemon.wait_started()
    until(lambda: ready(daemon), "both processes")
    publish_many(log, 10)
    until(lambda: len(daemon.handled()) >= 1, "a handler to begin")
    assert holders(log) <= {"me-1", "me-2"}
    daemon.terminate()
    until(lambda: daemon.get("/readyz")[1] == "not ready: draining\n", "the daemon to drain")
    daemon.gate.touch()
    assert daemon.exit_code() == 0
    begun = [line for line in daemon.handled() if line.startswith("begin")]
    assert sorted(daemon.handled()) == sorted(
        [*begun, *(each.replace("begin", "end") for each in begun)]
    )
    assert done(log) == 5 * len(begun)
    assert lease_states(log) == {("AVAILABLE", None)}
    assert "Traceback" not in daemon.text()


@proves("L8")
def test_a_second_sigterm_ends_all(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    daemon = daemons(database_url, *TWO, "--batch-consumer", GATED).wait_started()
    until(lambda: ready(daemon), "both processes")
    pids = children(daemon)
    publish_many(log, 10)
    until(lambda: len(daemon.handled()) >= 1, "a handler to begin")
    daemon.terminate()
    until(lambda: daemon.says("/readyz", 503, "draining"), "the daemon to drain")
    daemon.terminate()
    assert daemon.exit_code() == 1
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the end of all")
    assert done(log) == 0


@proves("L8")
def test_when_the_first_dies_the_others_leave(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    """Guard: the end of the line is the word to drain."""
    daemon = daemons(database_url, *TWO, "--consumer", RECORD).wait_started()
    until(lambda: ready(daemon), "both processes")
    pids = children(daemon)
    publish_many(log, 10)
    until(lambda: done(log) == 10, "the events")
    daemon.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the end of all")
    assert lease_states(log) == {("AVAILABLE", None)}


@proves("livez")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_stuck_handler_is_named(
    log: Connection, database_url: str, daemons: StartDaemon, processes: str
) -> None:
    given = (*BOTH, "--processes", processes, "--stuck-seconds", "1", "--drain-seconds", "0")
    daemon = daemons(database_url, *given, "--batch-consumer", GATED).wait_started()
    publish_many(log, 2)
    until(lambda: daemon.handled(), "the handler to begin")
    # On a busy machine it may name another worker too, or first.
    until(lambda: daemon.says("/livez", 503, "consumer:billing"), "the verdict")
    daemon.gate.touch()
    until(lambda: daemon.get("/livez")[0] == 200, "its life")


def test_a_process_that_cannot_start_ends_all(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    handler = "billing=tests.consumers.not_in_a_child:record"
    daemon = daemons(database_url, *TWO, "--consumer", handler)
    assert daemon.exit_code() == 2
    last = daemon.text().splitlines()[-1]
    assert last.startswith("penstock: handler 'tests.consumers.not_in_a_child:record' cannot be")
    assert last.endswith("the module must be importable where the daemon runs")
