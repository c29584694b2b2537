"""The workers of queues among the processes of a fault test: of Python, and ``penstock work``."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from penstock import database
from penstock.cli import main as command
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.consumer.running.worker import QueueWorker
from penstock.errors import PenstockError
from tests.faults.history import Recorder, real_time
from tests.faults.hooks import Failpoints, label_of
from tests.faults.poison import DEADLY, Poison
from tests.faults.queue_hooks import FIRST_PARTITION, RecordedQueue

#: What `penstock work` runs: a line for each event, and a failure where the payload says so.
SCRIPT = f"""read -r payload
case "$payload" in *{DEADLY}) echo "deadly" >&2; exit 1;; esac
echo "$PENSTOCK_PARTITION $PENSTOCK_SEQUENCE" >> "$PENSTOCK_TEST_BOOK"
"""


class Jobs:
    """A handler with exactly-once effect: a row in the transaction that finishes the event."""

    def __init__(self, given: argparse.Namespace, recorder: Recorder) -> None:
        self._recorded = RecordedQueue(recorder)
        self._failpoints = Failpoints(given.failpoint, recorder)
        self._poison = Poison(given)

    def do(self, delivery: QueueDelivery) -> None:
        """One event.  Poison acts when its effect is written, and has to undo it."""
        self._failpoints.hit("handle.before")
        sent: dict[str, float] = {}
        try:
            with delivery.transaction() as connection:
                database.execute(
                    connection,
                    "INSERT INTO done (sub, part, seq, label, receipt) VALUES"
                    " (%(sub)s, %(part)s, %(seq)s, %(label)s, %(receipt)s)",
                    {
                        "sub": delivery.subscription,
                        "part": delivery.partition + FIRST_PARTITION,
                        "seq": delivery.sequence,
                        "label": label_of(delivery),
                        "receipt": self._recorded.receipt,
                    },
                )
                self._poison.act(delivery)
                self._failpoints.hit("commit.before")
                sent = {"sent": time.monotonic(), "sent_d": real_time()}
        except BaseException as error:
            certain = not sent or isinstance(error, PenstockError)
            outcome = "fail" if certain else "info"
            self._recorded.committed(outcome, error=type(error).__name__, **sent)
            raise
        self._recorded.committed("ok", **sent)
        self._failpoints.hit("commit.after")


def work_off(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """A worker under the loop that the daemon and ``penstock worker`` use."""
    jobs = Jobs(given, recorder)

    def make() -> QueueConsumer:
        return QueueConsumer(
            given.url, given.subscription, handler=jobs.do, concurrency=given.concurrency,
            idle_seconds=0.05,
        )  # fmt: skip

    worker = QueueWorker(given.name, make)
    while not stop.is_set():
        try:
            worker.run(stop)
        except Exception as error:
            recorder.write("worker", "fail", error=f"{type(error).__name__}: {error}")
            stop.wait(0.2)


def run_command(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """``penstock work`` with a shell script, in this process.  It handles its signals itself."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    RecordedQueue(recorder)
    os.environ["PENSTOCK_DATABASE_URL"] = given.url
    os.environ["PENSTOCK_TEST_BOOK"] = str(Path(given.history) / f"{given.subscription}.book")
    concurrency = ["--concurrency", str(given.concurrency)]
    arguments = ["work", given.subscription, *concurrency, "--", "sh", "-c", SCRIPT]
    while not stop.is_set():
        if command.run(arguments) == 0:
            break
        stop.wait(0.2)
