"""Jobs on a topic are worked off as a queue while a stream reads the same topic.

`python -m tools.demo_queue`.  Ten good workers and one that fails one job in five, each a process
of its own.  One is killed and one is paused for longer than its claims last.  Each job writes a
line into the books in the transaction that finishes it.  At the end, the books have every job
exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock import database, log
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.consumer.stream.consumer import Consumer
from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import queue, stream
from penstock.topics import names
from resources.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from penstock.database import Connection

TOPIC, QUEUE, STREAM = "demo/jobs", "demo-workers", "demo-reader"
PARTITIONS = 4
VISIBILITY_SECONDS = 4.0
FAILS_ONE_IN = 5
_BATCH = 500
_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.25
_SAID_EVERY_SECONDS = 2.0


class JobFailed(PenstockError):
    """The worker that fails one job in five has failed."""


def work(url: str, name: str, *, fails: bool) -> None:
    """One worker, until SIGTERM."""
    chance = random.Random(name)

    def handle(job: QueueDelivery) -> None:
        with job.transaction() as connection:
            connection.execute(
                "INSERT INTO books (job, worker) VALUES (%s, %s)", (int(job.payload), name)
            )
            if fails and chance.randrange(FAILS_ONE_IN) == 0:
                raise JobFailed(f"{name} fails one job in {FAILS_ONE_IN}")

    QueueConsumer(url, QUEUE, handler=handle, concurrency=2).run()


@dataclass(slots=True)
class State:
    """What the table shows."""

    published: int = 0
    streamed: int = 0
    faults: list[str] = field(default_factory=list)


class Demo:
    """The log, the workers, and the books."""

    def __init__(self, url: str, jobs: int, workers: int) -> None:
        self.url = url
        self.jobs = jobs
        self.state = State()
        self.connection = database.connect(url)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._names = [*(f"worker-{n}" for n in range(1, workers + 1)), "failing"]
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def prepare(self) -> None:
        """Topic, queue, stream, books."""
        names.create_topic(self.connection, TOPIC, PARTITIONS, create_namespaces=True)
        queue.subscribe(self.connection, QUEUE, [TOPIC])
        queue.configure(
            self.connection,
            QUEUE,
            visibility_seconds=VISIBILITY_SECONDS,
            first_backoff_seconds=0.5,
            max_deliveries=50,
        )
        stream.subscribe(self.connection, STREAM, [TOPIC])
        self.connection.execute("CREATE TABLE books (job integer NOT NULL, worker text NOT NULL)")

    def play(self, show: Callable[[], None]) -> None:
        """All of it: the killed one is replaced by the others, the paused one wakes up too late."""
        for part in (self._sequence, self._publish, self._read):
            thread = threading.Thread(target=self._guarded, args=(part,), daemon=True)
            thread.start()
            self._threads.append(thread)
        for name in self._names:
            self.processes[name] = self._start(name)
        self._wait(show, lambda: self.done() > self.jobs // 10)
        killed, paused = self._names[0], self._names[1]
        self.processes[killed].kill()
        self.state.faults.append(f"{killed} killed")
        self.processes[paused].send_signal(signal.SIGSTOP)
        self.state.faults.append(f"{paused} paused")
        slept = time.monotonic()
        self._wait(show, lambda: time.monotonic() - slept > 3 * VISIBILITY_SECONDS)
        self.processes[paused].send_signal(signal.SIGCONT)
        self.state.faults.append(f"{paused} awake")
        self._wait(show, self.is_over)
        show()

    def is_over(self) -> bool:
        """Whether all is finished.  Dead letters are redriven: they are jobs too."""
        counted = queue.statistics(self.connection, QUEUE)
        if counted.dead:
            queue.redrive(self.connection, QUEUE)
        all_seen = self.state.published == self.state.streamed == self.jobs
        return all_seen and not counted.size and not counted.dead

    def done(self) -> int:
        """How many lines the books have."""
        return int(self.connection.execute("SELECT count(*) FROM books").fetchall()[0][0])

    def books(self) -> str:
        """'' when the books have each job exactly once, and else what is wrong."""
        lines, jobs, lowest, highest = self.connection.execute(
            "SELECT count(*), count(DISTINCT job), min(job), max(job) FROM books"
        ).fetchall()[0]
        if (lines, jobs, lowest, highest) == (self.jobs, self.jobs, 1, self.jobs):
            return ""
        return f"{lines} lines, {jobs} jobs, from {lowest} to {highest}, instead of {self.jobs}"

    def table(self) -> Table:
        """Depth, in flight, delayed, dead, done."""
        counted = queue.statistics(self.connection, QUEUE)
        shown = Table(title=", ".join(self.state.faults) or "all workers run")
        figures = {
            "published": self.state.published,
            "read by the stream": self.state.streamed,
            "ready": counted.ready,
            "in flight": counted.in_flight,
            "waiting after a failure": counted.delayed,
            "dead": counted.dead,
            "done": self.done(),
        }
        for name in figures:
            shown.add_column(name, justify="right")
        shown.add_row(*(f"{each:,}" for each in figures.values()))
        return shown

    def close(self) -> None:
        """End the workers: what they have in hand is finished or given back."""
        self._stop.set()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        for thread in self._threads:
            thread.join(30)
        self.connection.close()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tools.demo_queue", "--worker", name, "--database"]
        return subprocess.Popen([*command, self.url], stderr=subprocess.DEVNULL, env=os.environ)

    def _wait(self, show: Callable[[], None], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if self._errors:
                raise self._errors[0]
            if time.monotonic() > deadline:
                raise PenstockError(f"gave up waiting; the books: {self.books() or 'right'}")
            show()
            time.sleep(_LOOK_SECONDS)

    def _guarded(self, part: Callable[[Connection], None]) -> None:
        try:
            with database.connect(self.url) as connection:
                part(connection)
        except Exception as error:
            self._errors.append(error)

    def _sequence(self, connection: Connection) -> None:
        while not self._stop.is_set():
            if not log.sequence(connection).sequenced:
                self._stop.wait(0.01)

    def _publish(self, connection: Connection) -> None:
        while self.state.published < self.jobs and not self._stop.is_set():
            first = self.state.published + 1
            last = min(self.jobs, first + _BATCH - 1)
            numbers = range(first, last + 1)
            publish_batch(
                connection, [Message(TOPIC, str(n).encode(), key=f"{n}") for n in numbers]
            )
            self.state.published = last

    def _read(self, connection: Connection) -> None:
        def handle(event: Event) -> None:
            self.state.streamed += 1

        Consumer(self.url, STREAM, handler=handle).run(self._stop)


@contextlib.contextmanager
def shown(demo: Demo) -> Iterator[Callable[[], None]]:
    """A live table, or where there is no terminal a table now and then."""
    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda: live.update(demo.table(), refresh=True)
        return
    said = [0.0]

    def say() -> None:
        if time.monotonic() - said[0] > _SAID_EVERY_SECONDS:
            console.print(demo.table())
            said[0] = time.monotonic()

    yield say


@contextlib.contextmanager
def database_of(given: str | None) -> Iterator[str]:
    """The database that was given, or one that ends with the block; migrated."""
    with contextlib.ExitStack() as stack:
        if given is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-"))
            given = stack.enter_context(EmbeddedPostgres(Path(folder) / "postgres")).url("demo")
        migrate(given)
        yield given


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_queue", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=10, help="the good ones, 3 at least")
    parser.add_argument("--database", help="the URL of a database that is there already")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.database, options.worker, fails=options.worker == "failing")
        return 0
    begun = time.monotonic()
    with database_of(options.database) as url, contextlib.ExitStack() as stack:
        demo = stack.enter_context(contextlib.closing(Demo(url, options.jobs, options.workers)))
        demo.prepare()
        try:
            with shown(demo) as show:
                demo.play(show)
        except PenstockError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        wrong = demo.books()
    seconds = time.monotonic() - begun
    print(f"the books: {wrong or f'{options.jobs:,} jobs, each exactly once'} ({seconds:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
