"""The daemon's role ``queues``: a process that works off a queue, on each engine."""

from __future__ import annotations

from functools import partial

import pytest

from penstock import database
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import queue
from tests.consumers.conftest import StartDaemon
from tests.consumers.process import Daemon, until
from tests.contract.databases import ContractDatabase
from tests.contract.kit import end_sessions
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, pass_time, receive, rows

HANDLERS = "tests.consumers.handlers"
WORKER = f"consumer:{QUEUE}"


def started(db: ContractDatabase, daemons: StartDaemon, handler: str, *options: str) -> Daemon:
    """A daemon that works off the queue."""
    of_queue = ("--roles", "sequencer,queues", "--queue", f"{QUEUE}={HANDLERS}:{handler}")
    return daemons(db.url, *of_queue, "--idle-seconds=0.05", *options, soon=True).wait_started()


def jobs(own: Connection, events: int, **settings: float) -> None:
    """A queue with events 1, 2, 3, ..., and the table of their effects."""
    filled(own, events, 1, **settings)
    database.execute(own, "CREATE TABLE effects (number INT)")


def effects(own: Connection) -> list[int]:
    """Which events have had their effect."""
    return [int(number) for (number,) in rows(own, "SELECT number FROM effects ORDER BY 1")]


def counted(daemon: Daemon, name: str) -> bool:
    """Whether all twenty are in a figure."""
    return daemon.metric(name, WORKER) == 20


def size(own: Connection) -> int:
    """How many events are unfinished."""
    return queue.statistics(own, QUEUE).size


@proves("a daemon's queues")
@pytest.mark.long_on("mysql", "mariadb")
def test_it_works_off_a_queue(db: ContractDatabase, own: Connection, daemons: StartDaemon) -> None:
    """Each event once; the pages count; a lost session is survived; SIGTERM ends it in order."""
    jobs(own, 20)
    daemon = started(db, daemons, "work_off", "--concurrency=4")
    until(lambda: size(own) == 0, "all are done")
    assert effects(own) == list(range(1, 21))
    for name in ("consumed_events_total", "queue_hand_outs_total", "handler_seconds_count"):
        until(partial(counted, daemon, f"penstock_{name}"), name)
    assert daemon.metric("penstock_worker_up", WORKER) == 1
    ready = f'penstock_queue_ready{{subscription="{QUEUE}"}} 0'
    until(partial(daemon.says, "/metrics", 200, ready), "nothing is ready")
    for page in ("/livez", "/readyz"):
        until(partial(daemon.says, page, 200, "ok\n"), page)
    daemon.wait_past_start()
    end_sessions(db, own, f"penstock {QUEUE}")
    publish_batch(own, [Message(TOPIC, str(number).encode()) for number in range(21, 26)])
    until(lambda: len(effects(own)) == 25, "the rest is done")
    assert effects(own) == list(range(1, 26))
    daemon.terminate()
    assert daemon.exit_code() == 0


@proves("a daemon's queues")
@pytest.mark.long_on("mysql", "mariadb")
def test_sigterm_ends_what_is_begun_and_gives_back_the_rest(
    db: ContractDatabase, own: Connection, daemons: StartDaemon
) -> None:
    """Guards: the drain waits for handlers, and releases what nobody has begun."""
    jobs(own, 5)
    daemon = started(db, daemons, "work_behind_a_gate", "--prefetch=10", "--concurrency=2")
    until(lambda: len(daemon.handled()) == 2, "two are begun")
    until(lambda: queue.statistics(own, QUEUE).in_flight == 5, "the rest is received ahead")
    daemon.terminate()
    until(lambda: queue.statistics(own, QUEUE).ready == 3, "the rest is given back")
    assert daemon.get("/readyz") == (503, "not ready: draining\n")
    daemon.gate.touch()
    assert daemon.exit_code() == 0
    assert (effects(own), size(own)) == ([1, 2], 3)
    assert {each.deliveries for each in receive(own, 5)} == {1}


@proves("a daemon's queues")
@pytest.mark.long
def test_what_a_killed_one_had_comes_to_another(
    db: ContractDatabase, own: Connection, daemons: StartDaemon
) -> None:
    """SIGKILL; and two processes share the queue."""
    jobs(own, 6, visibility_seconds=30)
    first = started(db, daemons, "work_behind_a_gate", "--visibility-seconds=60")
    until(first.handled, "one is begun")
    first.kill()
    pass_time(own, 31)
    second = started(db, daemons, "work_off", "--processes=2")
    until(lambda: size(own) <= 1, "what it had not begun is done")
    assert 1 not in effects(own), "its visibility was given: sixty seconds"
    pass_time(own, 30)
    until(lambda: size(own) == 0, "what it had begun is done")
    assert effects(own) == list(range(1, 7))
    assert second.handled()[-1] == "1 2"
    second.terminate()
    assert second.exit_code() == 0
