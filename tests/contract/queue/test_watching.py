"""What is said of queues: figures, findings of the doctor, status."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from penstock import subscriptions
from penstock.cli.queues import counted_queues
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.running.worker import QueueWorker
from penstock.doctor import queues as doctored
from penstock.doctor.findings import Limits
from penstock.doctor.queues import examine_queues
from penstock.errors import PermissionDenied
from penstock.subscriptions import overview, queue, stream
from penstock.upkeep.watch import Watch
from tests import command
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    all_older,
    filled,
    pass_time,
    receipts,
    receive,
)


def _figures(db: ContractDatabase) -> dict[str, float]:
    watch = Watch(db.url, [QUEUE], everything=False)
    try:
        found = watch.figures()
    finally:
        watch.close()
    return {name: float(value) for (name, label), value in found.items() if label == QUEUE}  # type: ignore[arg-type]


def test_what_a_queue_has_is_measured(db: ContractDatabase, own: Connection) -> None:
    filled(own, 10, max_failures=2)
    stream.subscribe(own, "a stream", [TOPIC])
    queue.reject(own, QUEUE, receipts(receive(own, 2)))
    receive(own, 3)
    found = _figures(db)
    states = {name: found[f"queue_{name}"] for name in ("ready", "in_flight", "delayed")}
    assert states == {"ready": 5, "in_flight": 3, "delayed": 2}
    assert found["dead_letters"] == 0
    before = found["queue_oldest_seconds"]
    all_older(own, 3600)
    assert _figures(db)["queue_oldest_seconds"] >= before + 3600


def test_an_empty_queue_has_nothing_old(db: ContractDatabase, own: Connection) -> None:
    """Guards: the looks at its size.  Its position is behind until somebody receives, or sweeps."""
    filled(own, 3)
    acknowledge(own, receive(own, 3))
    all_older(own, 3600)
    assert subscriptions.lag(own, QUEUE)[0].lag_seconds >= 3600
    assert examine_queues(own, Limits()) == []
    assert _figures(db)["queue_oldest_seconds"] == 0


def test_without_the_right_there_is_no_figure(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(own, 1)

    def refuse(*_: object) -> object:
        raise PermissionDenied("not for this login")

    monkeypatch.setattr("penstock.upkeep.waiting.queue.statistics", refuse)
    assert "queue_ready" not in _figures(db)


def test_a_worker_counts_what_it_is_handed(db: ContractDatabase, own: Connection) -> None:
    """Expirations too: a claim that ended unfinished shows at the next hand-out."""
    filled(own, 6)
    receive(own, 2)
    pass_time(own, 100)
    consumer = QueueConsumer(db.url, QUEUE, handler=lambda _: None)
    worker = QueueWorker("queue:mails", lambda: consumer)
    worker._follow(consumer)
    assert consumer.run_until_idle() == 6
    counted = worker.counters()
    assert (counted["queue_hand_outs"], counted["queue_expirations"]) == (6, 2)
    assert (counted["consumed_events"], worker.gauges()) == (6, {"queue_in_hand": 0})


def test_the_doctor_says_who_holds_the_bound(db: ContractDatabase, own: Connection) -> None:
    """At max_in_flight nothing is handed out; the finding names the first event that is held."""
    filled(own, 5, max_in_flight=3)
    assert examine_queues(own, Limits()) == []
    held = receive(own, 3)
    assert receive(own, 1) == []
    (finding,) = examine_queues(own, Limits())
    assert finding.check == "queue_full"
    assert f"{TOPIC} partition 0 sequence 1, hand-out 1" in finding.what
    queue.reject(own, QUEUE, [held[0].receipt], delay_seconds=1000)
    receive(own, 1)
    (finding,) = examine_queues(own, Limits())
    assert f"{TOPIC} partition 0 sequence 2, hand-out 1" in finding.what, "1 waits for a retry"
    assert finding.page == "docs/reference/alerts.md#penstockqueueold"


def test_the_doctor_names_an_old_event(
    db: ContractDatabase,
    own: Connection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the command that it names runs; status says the same."""
    filled(own, 5)
    all_older(own, 3600)
    (finding,) = examine_queues(own, Limits())
    assert (finding.check, "has waited for 60 minutes" in finding.what) == ("queue_old", True)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    run = partial(command.run, capsys)
    _, *arguments = finding.command.partition("  #")[0].split()
    assert run(*arguments).code == 0
    (shown,) = run("status", "-o", "json").json["queues"]
    assert (shown["queue"], shown["ready"], shown["dead"]) == (QUEUE, 5, 0)


def test_one_that_is_deleted_meanwhile_is_left_out(
    db: ContractDatabase, own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are still looked at: by the metrics, the command and the doctor."""
    filled(own, 1)
    real = overview.list_subscriptions

    def and_a_ghost(connection: Connection) -> list[overview.Subscription]:
        found = real(connection)
        return [replace(found[0], name="a ghost"), *found]

    for each in (subscriptions, overview, doctored):
        monkeypatch.setattr(each, "list_subscriptions", and_a_ghost)
    watch = Watch(db.url, [QUEUE, "a ghost"], everything=False)
    try:
        assert watch.figures()["queue_ready", QUEUE] == 1
    finally:
        watch.close()
    assert [each["queue"] for each in counted_queues(own)] == [QUEUE]
    queue.configure(own, QUEUE, max_in_flight=1)
    receive(own, 1)
    assert [each.check for each in examine_queues(own, Limits())] == ["queue_full"]
