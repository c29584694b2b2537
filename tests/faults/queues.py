"""Queues in the mixed run: their topic, their workers, and what the checker is told of them.

``jobs`` has no order, ``keyed`` keeps that of keys; their workers write a row in the transaction
that finishes an event.  ``shell`` is worked off by ``penstock work``, at least once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock import database
from penstock.subscriptions import queue
from penstock.topics import names
from tests.faults.mixed import Mixed
from tests.faults.queue_hooks import FIRST_PARTITION
from tests.faults.servers import Crashing
from tests.faults.world import PATIENCE, World, log_of, rows_of

TOPIC = "faults/jobs"
ORDERS = {"jobs": "none", "keyed": "key", "shell": "none", "late": "none"}
#: It begins when the first events are dropped already.
LATE = "late"
VISIBILITY_SECONDS = 2.0
SETTINGS = {
    "visibility_seconds": VISIBILITY_SECONDS,
    "max_failures": 3,
    "max_deliveries": 100,
    "first_backoff_seconds": 0.1,
    "longest_backoff_seconds": 0.5,
}
WORKERS = frozenset({"worker", "command"})


@dataclass
class QueueWorld(World):
    """A run with queues, too."""

    settings: dict[str, float] = field(default_factory=lambda: dict(SETTINGS))

    def set_up(self) -> None:
        """Also their topic, and the table that their workers write to."""
        super().set_up()
        serial = "SERIAL" if self.engine == "postgres" else "BIGINT AUTO_INCREMENT"
        with contextlib.closing(self.connect()) as own:
            names.create_topic(own, TOPIC, self.partitions)
            for name in ORDERS.keys() - {LATE}:
                self.make(own, name)
            database.execute(
                own,
                f"CREATE TABLE done (id {serial} PRIMARY KEY, sub VARCHAR(20), part INT,"
                " seq BIGINT, label VARCHAR(80), receipt VARCHAR(80))",
            )

    def make(self, connection: Any, name: str) -> None:
        """A queue that begins at the first event that there is."""
        queue.subscribe(connection, name, [TOPIC])
        queue.configure(connection, name, **self.settings | {"order": ORDERS[name]})

    def jobs_of(self, connection: Any, partition: int) -> Iterable[list[Any]]:
        """The events of a partition, as the checker reads them."""
        return log_of(connection, TOPIC, partition, 1)

    def drain(self, seconds: float = PATIENCE) -> None:
        """Also wait until the queues that have workers are empty, and their positions say so.

        A position moves with a receive or a sweep: there has to be one after the last event is
        finished.  On a busy machine much may be left, so that it lasts as long as it goes on.
        """
        super().drain(seconds)
        with contextlib.closing(self.connect()) as own:
            for each in self.worked_off():
                while not self._is_done(own, each):
                    goes_on = partial(self._has_less_than, own, each, self._unfinished(own, each))
                    self.until(goes_on, f"{each} goes on until it is empty", seconds)

    def _has_less_than(self, own: Any, name: str, before: int) -> bool:
        return self._unfinished(own, name) < before or self._is_done(own, name)

    def _unfinished(self, own: Any, name: str) -> int:
        return sum(_left(own, name)) + self.lag(own, name)

    def _is_done(self, own: Any, name: str) -> bool:
        return not any(_left(own, name)) and self.lag(own, name) == 0

    def worked_off(self) -> list[str]:
        """The queues that had a worker."""
        started = {each["sub"] for each in self.records("receive", "invoke")}
        return [each for each in ORDERS if each in started]

    def dump(self) -> dict[str, Any]:
        """Also what the queues hold; their partitions have numbers of their own."""
        found = super().dump()
        idle = set(ORDERS) - set(self.worked_off())
        for kind in ("dead", "ledger", "leases"):
            found[kind] = [row for row in found[kind] if row[0] not in idle]
            for row in found[kind]:
                row[1] += FIRST_PARTITION if row[0] in ORDERS else 0
        with contextlib.closing(self.connect()) as own:
            for partition in range(self.partitions):
                for row in self.jobs_of(own, partition):
                    found["log"].append([partition + FIRST_PARTITION, *row[1:]])
            found["done"] = rows_of(
                own, "SELECT sub, part, seq, label, receipt FROM done ORDER BY id"
            )
            found["queues"] = {each: self._described(own, each) for each in self.worked_off()}
        found["handled"] = _book(self.folder / "shell.book")
        found["forgets"] = self.engine == "postgres"  # a receive does not wait for the disk
        (self.folder / "dump.json").write_text(json.dumps(found))
        return found

    def _described(self, connection: Any, name: str) -> dict[str, Any]:
        return {
            "order": ORDERS[name],
            "effects": "least" if name == "shell" else "exact",
            "max_failures": self.settings["max_failures"],
            "max_deliveries": self.settings["max_deliveries"],
            "partitions": [each + FIRST_PARTITION for each in range(self.partitions)],
            "left": _left(connection, name),
        }


def _left(connection: Any, name: str) -> list[int]:
    """What of a queue is ready, handed out and delayed."""
    found = queue.statistics(connection, name)
    return [found.ready, found.in_flight, found.delayed]


def _book(file: Path) -> list[list[Any]]:
    """What shell scripts have handled."""
    lines = file.read_text().splitlines() if file.exists() else []
    places = [map(int, each.split()) for each in lines]
    return [["shell", partition + FIRST_PARTITION, sequence] for partition, sequence in places]


class MixedQueues(Mixed):
    """The mixed run, with workers of queues beside the consumers of streams."""

    world: QueueWorld

    def __init__(
        self, world: QueueWorld, server: Crashing, seed: int, *, workers: int, shell: bool
    ) -> None:
        super().__init__(world, server, seed)
        self.faults |= {
            "pause worker": self.pause_worker,
            "worker at a place": self.worker_at_a_place,
            "late worker": self.late_worker,
            "late worker in its transaction": self.late_worker_in_its_transaction,
        }
        self.workers = workers
        self.shell = shell

    def start(self, consumers: int, poison: tuple[str, ...]) -> None:
        """Also a publisher of jobs, and workers of each queue."""
        super().start(consumers, poison)
        words = ["--poison=raise", "--poison=dead", *(["--poison=exit"] if self.shell else [])]
        pace = ["--pause=0.25", "--poisons=0.1", f"--seed={self.chance.randrange(10**6)}"]
        self.world.start("publisher", "q0", f"--topic={TOPIC}", *pace, *words)
        for number in range(self.workers):
            self.consumer("jobs", f"jobs{number}")
            self.consumer("keyed", f"keyed{number}")
        if self.shell:
            self.world.start("command", "shell0", "--subscription=shell")

    def begin(self, consumers: int = 2, poison: tuple[str, ...] = ("raise", "exit")) -> None:
        """Until all are at work."""
        super().begin(consumers, poison)
        names = self._names(WORKERS)
        self.world.until(lambda: all(map(self._has_received, names)), "each worker has an event")

    def consumer(self, subscription: str, name: str, *options: str) -> None:
        """A consumer process, or a worker of a queue."""
        if subscription not in ORDERS:
            super().consumer(subscription, name, *options)
            return
        # Beside a handler that stops its process, another one may be in its COMMIT.
        at_once = 1 if name.startswith("zombie") else 2
        given = ("--subscription", subscription, "--concurrency", str(at_once), *options)
        self.world.start("worker", name, *given)

    def late_worker(self) -> None:
        """F3: a worker stands still before its transaction until another one has its event."""
        self.zombie(self.chance.choice(["jobs", "keyed"]), "handle.before")

    def late_worker_in_its_transaction(self) -> None:
        """F3 between the acknowledgement and its COMMIT: the server ends the transaction."""
        self.zombie(self.chance.choice(["jobs", "keyed"]))

    def worker_at_a_place(self) -> None:
        """F1 round the transaction of a worker."""
        places = ["handle.before", "commit.before", "commit.after"]
        self.doomed(self.chance.choice(["jobs", "keyed"]), self.chance.choice(places))

    def pause_worker(self) -> None:
        """F3, anywhere, for longer than its claims last."""
        name = self._chosen(WORKERS)
        self.world.stop(name)
        self.wait(1.5 * VISIBILITY_SECONDS)
        self.world.go_on(name)

    def taken_over_from(self, name: str) -> None:
        """Until others have what it has in hand."""
        if self.world.running[name].role not in WORKERS:
            super().taken_over_from(name)
            return
        self.world.until(lambda: self._is_replaced(name), f"{name} is late")

    def woken(self, name: str) -> None:
        """A receipt that it had is refused."""
        process = self.world.running[name]
        if process.role in WORKERS:
            refused = {"pid": process.process.pid, "error": "StaleReceipt"}
            self.world.until(
                lambda: self.world.records("finish", "fail", **refused),
                f"an old receipt of {name} is refused",
            )

    def end(self) -> None:
        """Workers that were just started hear no signal yet."""
        names = self._names(WORKERS)
        self.world.until(lambda: all(map(self._has_asked, names)), "all workers are at work")
        super().end()

    def figures(self) -> dict[str, Any]:
        """What happened in the run."""
        world = self.world
        calls = [each["how"] for each in world.records("finish")]
        stale = world.records("finish", "fail", error="StaleReceipt")
        return {
            "faults": dict(world.done),
            "publishes": len(world.records("publish")),
            "commits": len(world.records("commit")),
            "jobs": {name: self._numbers(name) for name in world.worked_off()},
            "calls": {how: calls.count(how) for how in sorted(set(calls))},
            "stale receipts refused": len(stale),
        }

    def _numbers(self, name: str) -> dict[str, int]:
        given = [e for told in self.world.records("hand_out", sub=name) for e in told["events"]]
        with contextlib.closing(self.world.connect()) as own:
            dead = queue.statistics(own, name).dead
        events = {(each[0], each[1]) for each in given}
        return {"events": len(events), "hand-outs": len(given), "dead": dead}

    def _names(self, roles: Collection[str]) -> list[str]:
        return [each.name for each in self.world.running.values() if each.role in roles]

    def _has_asked(self, name: str) -> bool:
        pid = self.world.running[name].process.pid
        return bool(self.world.records("receive", "invoke", pid=pid))

    def _has_received(self, name: str) -> bool:
        return any(each["events"] for each in self.world.records("hand_out", proc=name))

    def _in_hand(self, name: str) -> dict[tuple[str, int, int], float]:
        """What a process was handed, less what it has ended, and when it was."""
        pid = self.world.running[name].process.pid
        calls = [r for st in ("ok", "info") for r in self.world.records("finish", st, pid=pid)]
        first = {each["renewed"]: each["receipt"] for each in calls if "renewed" in each}
        ended = {each["receipt"] for each in calls if each["how"] != "extend"}
        while renewed := ended & first.keys():
            ended = (ended - renewed) | {first[each] for each in renewed}
        return {
            (told["sub"], partition, sequence): told["t"]
            for told in self.world.records("hand_out", pid=pid)
            for partition, sequence, _, _, receipt, *_ in told["events"]
            if receipt not in ended
        }

    def _is_replaced(self, name: str) -> bool:
        """Whether others were handed all that it has in hand, after it was.

        They may have had an event before it, and failed.
        """
        pid = self.world.running[name].process.pid
        left = self._in_hand(name)
        for told in self.world.records("hand_out"):
            for partition, sequence, *_ in told["events"] if told["pid"] != pid else ():
                event = (told["sub"], partition, sequence)
                if told["t"] > left.get(event, told["t"]):
                    del left[event]
        return not left
