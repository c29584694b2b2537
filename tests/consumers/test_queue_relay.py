"""The relay of a queue as a worker of the daemon."""

from __future__ import annotations

from penstock.subscriptions import queue
from tests.consumers.conftest import TOPIC, Connection, StartDaemon
from tests.consumers.process import until
from tests.consumers.test_daemon import publish_many
from tests.kit.proof import proves
from tests.relay.receivers import Call, Says, receiving

WORKER = "relay:hooks"


@proves("a queue's relay loses and hides nothing")
def test_a_daemon_relays_a_queue_and_counts_it(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    """One of its events is refused: a dead letter."""
    queue.subscribe(log, "hooks", [TOPIC])
    with receiving() as receiver:
        refused: list[str] = []

        def answer(call: Call) -> Says:
            refused[:] = refused or [call.headers["webhook-id"]]
            return Says(400 if call.headers["webhook-id"] in refused else 204)

        receiver.answer = answer
        relay = ("--relay", f"hooks={receiver.address}#order=key")
        daemon = daemons(
            database_url, "--roles", "sequencer,relay", *relay, **receiver.environ()
        ).wait_started()
        publish_many(log, 20)
        until(lambda: queue.statistics(log, "hooks").size == 0, "all are sent")

        def shown(name: str) -> float:
            return daemon.metric(f"penstock_{name}", WORKER)

        until(lambda: shown("relayed_events_total") == 19, "the sent ones are counted")
        until(lambda: shown("relayed_dead_letters_total") == 1, "the refused one is counted")
        until(lambda: shown("handler_seconds_count") >= 19, "the calls are counted")
        until(lambda: shown("relay_in_hand") == 0, "nothing is in hand")
        until(lambda: (shown("relay_breaker_open"), shown("worker_up")) == (0, 1), "it is up")
        ready = 'penstock_queue_ready{subscription="hooks"} 0'
        until(lambda: ready in daemon.get("/metrics")[1], "the queue is measured")
        until(lambda: daemon.get("/readyz") == (200, "ok\n"), "it is ready")
        daemon.terminate()
        assert daemon.exit_code() == 0
