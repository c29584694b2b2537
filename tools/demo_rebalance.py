"""Three consumers share the partitions of a topic; one is removed, and the others take over.

`python -m tools.demo_rebalance --registry etcd --partitions 16`.  The log is in PostgreSQL, the
leases and positions where --registry says; both servers are started for the moment, unless
--database or --registry-url names one.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock import database, log
from penstock.database.migrate import migrate
from penstock.errors import PenstockError, StaleLease
from penstock.leases.coordination import LeaseRegistry, open_registry
from penstock.leases.coordination.assigners import Assigner, Coordinated, WorkStealing
from penstock.leases.coordination.marks import copy_positions
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.topics import names
from resources.embedded import EmbeddedPostgres
from tools.servers import ETCD, REDIS, StoreServer

if TYPE_CHECKING:
    from penstock.database import Connection

TOPIC, SUBSCRIPTION = "demo/rebalance", "demo-rebalance"
CONSUMERS = ("A", "B", "C")
FIRST, SECOND = 100, 50
REGISTRIES = ("memory", "postgres", "etcd", "redis")
WAYS: dict[str, type[Assigner]] = {"stealing": WorkStealing, "coordinated": Coordinated}
LEASE_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_NUMBER = 0xFFFF  # the low bits of a partition's id


class Reader(threading.Thread):
    """A consumer in a thread, with its own connections: check in, read, count, commit."""

    def __init__(self, name: str, database_url: str, registry: LeaseRegistry, way: str) -> None:
        super().__init__(name=name, daemon=True)
        self.assigner = WAYS[way](registry, name)
        self.events = 0
        self.error: Exception | None = None
        self._url = database_url
        self._stopping = threading.Event()
        self.assigner.join()

    def run(self) -> None:
        try:
            with database.connect(self._url) as connection, self.assigner.registry:
                while not self._stopping.is_set():
                    self.assigner.check_in()
                    if not self._read(connection):
                        self._stopping.wait(_PAUSE_SECONDS)
                self.assigner.leave()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Finish what is in hand, give every lease back, and end."""
        self._stopping.set()
        self.join(_PATIENCE_SECONDS)

    def _read(self, connection: Connection) -> int:
        found = 0
        for partition_id, held in list(self.assigner.held.items()):
            events = log.fetch(
                connection, TOPIC, partition_id & _NUMBER, held.position + 1, max_events=100
            )
            if events:
                with contextlib.suppress(StaleLease):  # another consumer reads them
                    self.assigner.commit(partition_id, events[-1].sequence)
                    self.events += len(events)
                    found += len(events)
        return found


class Demo:
    """The log, the registry, and those who read."""

    def __init__(self, database_url: str, registry_url: str, partitions: int, way: str) -> None:
        self.url = database_url
        self.registry_url = registry_url
        self.connection = database.connect(database_url)
        self.partitions = partitions
        names.create_topic(self.connection, TOPIC, partitions, create_namespaces=True)
        stream.subscribe(self.connection, SUBSCRIPTION, [TOPIC])
        rows = database.call(self.connection, "lease_states", subscription=SUBSCRIPTION)
        self.registry = self.open()
        self.registry.initialize({int(row[0]): 0 for row in rows})
        self.readers = {name: Reader(name, database_url, self.open(), way) for name in CONSUMERS}

    def open(self) -> LeaseRegistry:
        """Open another registry, as every process does."""
        prefix = urlsplit(self.url).path.strip("/")  # several databases may share one store
        return open_registry(
            self.registry_url, SUBSCRIPTION, lease_seconds=LEASE_SECONDS, prefix=prefix
        )

    def play(self) -> None:
        """The whole demo; prints as it goes."""
        for each in self.readers.values():
            each.start()
        self.wait(self.is_shared, "all partitions are held in fair shares")
        self.say_who_holds_what()
        self.publish(1, FIRST)
        self.wait(lambda: self.counted() == self.done() == FIRST, f"{FIRST} events are read")
        self.say_counts()
        print("A is removed")
        self.readers["A"].stop()
        self.wait(self.is_shared, "the others have taken over")
        self.say_who_holds_what()
        self.publish(FIRST + 1, SECOND)
        together = FIRST + SECOND
        self.wait(lambda: self.counted() == self.done() == together, f"{together} events are read")
        self.say_counts()
        self.say_positions()

    def close(self) -> None:
        """Stop every consumer."""
        for each in self.readers.values():
            if each.is_alive():
                each.stop()
        self.registry.close()
        self.connection.close()

    def publish(self, first: int, count: int) -> None:
        """Events with keys, so that the partitions get different numbers of them."""
        numbers = range(first, first + count)
        publish_batch(
            self.connection, [Message(TOPIC, f"{n}".encode(), key=f"account-{n}") for n in numbers]
        )
        while (done := log.sequence(self.connection)).sequenced or done.more:
            pass
        print(f"{count} events published")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds.  A reader's error ends the wait."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            for each in self.readers.values():
                if each.error is not None:
                    raise each.error
            if time.monotonic() > deadline:
                raise PenstockError(f"gave up waiting until {what}")
            time.sleep(_PAUSE_SECONDS)

    def held(self) -> dict[str, list[int]]:
        """The partition numbers of each consumer, from the registry."""
        return {
            name: sorted(each.partition_id & _NUMBER for each in self.registry.owned_by(name))
            for name in self.registry.active_consumers()
        }

    def is_shared(self) -> bool:
        """Whether all partitions are held, and no consumer has two more than another."""
        counts = [len(each) for each in self.held().values()]
        return sum(counts) == self.partitions and max(counts) - min(counts) <= 1

    def done(self) -> int:
        """How many events are committed: positions count them, from 0 in every partition."""
        return sum(each.position for each in self.registry.snapshot().partitions.values())

    def counted(self) -> int:
        """How many events the consumers say they have read."""
        return sum(each.events for each in self.readers.values())

    def say_who_holds_what(self) -> None:
        """One line for each consumer."""
        for name, numbers in self.held().items():
            print(f"{name} holds {len(numbers)}: {' '.join(map(str, numbers))}")

    def say_counts(self) -> None:
        """How many events each has read."""
        each_of_them = ", ".join(f"{name} {each.events}" for name, each in self.readers.items())
        print(f"read: {each_of_them}; together {self.counted()}")

    def say_positions(self) -> None:
        """The positions, and whether retention knows them."""
        partitions = self.registry.snapshot().partitions.values()
        print(
            "positions:", " ".join(f"{p.partition_id & _NUMBER}={p.position}" for p in partitions)
        )
        if urlsplit(self.registry_url).scheme != urlsplit(self.url).scheme:
            moved = copy_positions(self.connection, SUBSCRIPTION, self.registry)
            print(f"copied to the database for retention: {moved} positions")


@contextlib.contextmanager
def places(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The URLs of the log and of the registry.

    Servers that were started here end with the block.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        if options.database:
            log_url = options.database
        else:
            log_url = stack.enter_context(EmbeddedPostgres(folder / "postgres")).url("demo")
        migrate(log_url)
        if options.registry_url:
            yield log_url, options.registry_url
        elif options.registry == "postgres":
            yield log_url, log_url
        elif options.registry == "memory":
            yield log_url, f"memory://{folder.name}"
        else:
            store = {"etcd": ETCD, "redis": REDIS}[options.registry]
            yield log_url, stack.enter_context(StoreServer(folder / store.name, store)).url()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_rebalance", description=__doc__)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--registry", choices=REGISTRIES, default="memory")
    parser.add_argument("--registry-url", help="a registry that runs already")
    parser.add_argument("--database", help="the URL of a database that is there already")
    parser.add_argument("--assign", choices=WAYS, default="stealing")
    options = parser.parse_args(arguments)
    try:
        with places(options) as (log_url, registry_url):
            print(f"registry: {options.registry}, partitions: {options.partitions}")
            demo = Demo(log_url, registry_url, options.partitions, options.assign)
            with contextlib.closing(demo):
                demo.play()
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
