"""Workers of a queue in one process, interleaved by a seed, with everything that receipts forbid.

Every one keeps each receipt that it ever had in mind and may use it: late, twice, after somebody
else got its event, in a transaction that others overtake.  The history is that of
:mod:`tests.faults.queues`, so the same checker judges it; tests run it on the product, and on
mutants of it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from penstock import database
from penstock.database import sessions
from penstock.errors import PenstockError
from penstock.publishing.publish import publish
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.faults.history import real_time
from tests.faults.hooks import label_of
from tests.faults.queue_hooks import FIRST_PARTITION, Calls, told
from tests.faults.queues import TOPIC, QueueWorld
from tests.faults.told import Anomaly
from tests.kit.log import drain
from tests.kit.queue import pass_time_of

PARTITIONS = 2
STEPS, CHUNK = 60, 30
VISIBLE = 100.0
MOST_FAILURES = 2
#: At the end of a mutant's steps.
MOST_ROUNDS = 20
KEYS = "ab"


@dataclass
class Held:
    """What a worker was given, and the receipt that it has by now."""

    delivery: Delivery
    receipt: Receipt


@dataclass
class Player:
    """A worker with two connections: one for its transactions, one for everything else."""

    own: Any
    work: Any
    held: list[Held] = field(default_factory=list)
    open: dict[str, Any] | None = None


class QueuePlay:
    """Random steps of three workers; a refusal, or a lock that it does not get, is a result."""

    def __init__(self, db: ContractDatabase, folder: Path, seed: int, name: str = "jobs") -> None:
        self.db = db
        self.name = name
        self.chance = random.Random(seed)
        # Times pass by hand only, so that nothing depends on how fast the machine is.
        self.world = QueueWorld(db.url, folder, PARTITIONS, heartbeat=20, lease=600)
        self.world.subscriptions = ()
        self.world.settings |= {"max_failures": MOST_FAILURES, "longest_backoff_seconds": 10}
        self.players: list[Player] = []
        self._is_mutant = False
        self._transactions = count(1)
        self._patience = "SET lock_timeout = '100ms'"
        if db.engine != "postgres":
            self._patience = "SET SESSION innodb_lock_wait_timeout = 1"

    def run(self, steps: int = STEPS) -> list[Anomaly]:
        """The verdict on so many steps, after which what is left is done."""
        with self.world:
            self._begin_play()
            self._go(steps)
            self._finish(rounds=5 * steps)
            return self.world.verdict()

    def shows(self, kind: str, chunks: int = 10) -> bool:
        """Whether the checker sees an anomaly of this kind, whatever errors the mutant has."""
        self._is_mutant = True
        with self.world:
            self._begin_play()
            for _ in range(chunks):
                self._go(CHUNK)
                self._finish()
                if kind in {each.kind for each in self.world.verdict()}:
                    return True
        return False

    def _begin_play(self) -> None:
        self.world.set_up()
        self.recorder = self.world.recorder
        self.calls = Calls(self.recorder)
        self.players = [
            Player(self._connect(autocommit=True), self._connect(autocommit=False))
            for _ in range(3)
        ]
        for _ in range(3):
            self.publish(self.players[0])

    def _go(self, steps: int) -> None:
        moves = [
            *([self.publish] * 3 + [self.receive] * 6 + [self.acknowledge] * 3 + [self.late] * 4),
            *([self.begin] * 2 + [self.end] * 3 + [self.reject] * 4 + [self.overtake] * 4),
            *([self.extend, self.release, self.wait] + [self.sweep] * 2),
        ]
        for _ in range(steps):
            self.chance.choice(moves)(self.chance.choice(self.players))
        for each in self.players:
            self.end(each)
        self.sweep(self.players[0])

    def publish(self, _: Player) -> None:
        """A transaction of three events, now and then rolled back; sequenced at once."""
        name = f"t-{next(self._transactions)}"
        events = [f"{name}/{number}" for number in range(3)]
        self.recorder.write("publish", "invoke", tx=name)
        connection = self.players[0].work if self.players[0].open is None else None
        if connection is None:
            self.recorder.write("publish", "fail", tx=name)
            return
        for number, label in enumerate(events):
            key = KEYS[number % len(KEYS)]
            publish(connection, TOPIC, label.encode(), key=key, partition=number % PARTITIONS)
        self.recorder.write("stage", "ok", tx=name, events=events, undone=[])
        keeps = self.chance.random() < 0.8
        connection.commit() if keeps else connection.rollback()
        self.recorder.write("publish", "ok" if keeps else "fail", tx=name)
        drain(self.players[0].own)

    def receive(self, player: Player, most: int = 3) -> None:
        """Some events; now and then the look that receivers share is due."""
        if self.chance.random() < 0.7:
            self._pass(1)
        self.recorder.write("receive", "invoke", sub=self.name)
        try:
            found = queue.receive(
                player.own, self.name, self.chance.randint(1, most), visibility_seconds=VISIBLE
            )
        except Exception as error:
            self._require_contention(error)
            return
        events = [told(each, VISIBLE) for each in found]
        self.recorder.write("hand_out", "ok", sub=self.name, events=events)
        player.held += [Held(each, each.receipt) for each in found]

    def acknowledge(self, player: Player) -> None:
        """The newest event, in a transaction of its own."""
        self.begin(player)
        self.end(player)

    def late(self, player: Player) -> None:
        """One of the last events, whatever has become of it."""
        self.begin(player, back=6)
        self.end(player)

    def begin(self, player: Player, back: int = 1) -> None:
        """An effect and its acknowledgement, whose COMMIT comes some steps later."""
        if not player.held or player.open is not None:
            return
        held = self.chance.choice(player.held[-back:])
        call = self.calls.begin("acknowledge", held.receipt)
        event = held.delivery.event
        try:
            queue.acknowledge(player.work, self.name, [held.receipt])
            database.execute(
                player.work, "INSERT INTO done (sub, part, seq, label, receipt) VALUES"
                " (%(sub)s, %(part)s, %(seq)s, %(label)s, %(receipt)s)",
                {"sub": self.name, "part": event.partition + FIRST_PARTITION,
                 "seq": event.sequence, "label": label_of(event), "receipt": str(held.receipt)},
            )  # fmt: skip
            player.open = call
        except Exception as error:
            self._require_contention(error)
            player.work.rollback()
            self.calls.end("fail", call)

    def end(self, player: Player) -> None:
        """COMMIT, or now and then ROLLBACK."""
        call, player.open = player.open, None
        if call is None:
            return
        if self.chance.random() < 0.1:
            player.work.rollback()
            self.calls.end("fail", call)
            return
        sent = {"sent": time.monotonic(), "sent_d": real_time()}
        player.work.commit()
        self.calls.end("ok", call, **sent)

    def overtake(self, player: Player) -> None:
        """It is paused past its claim, perhaps in its transaction; another one works meanwhile."""
        if self.chance.random() < 0.5:
            self.begin(player)
        self._pass(VISIBLE + 1)
        other = self.chance.choice([each for each in self.players if each is not player])
        self.receive(other)
        if self.chance.random() < 0.5:
            self.acknowledge(other)
        self.end(player)
        self.late(player)

    def reject(self, player: Player) -> None:
        """One of the last has failed."""
        self._use(
            player, "reject", lambda held: queue.reject(player.own, self.name, [held.receipt])
        )

    def release(self, player: Player) -> None:
        """One of the last is put back unbegun."""
        own, name = player.own, self.name
        self._use(player, "release", lambda held: queue.release(own, name, [held.receipt]))

    def extend(self, player: Player) -> None:
        """One of the last gets more time, and a new receipt."""
        seconds = 2 * VISIBLE

        def extended(held: Held) -> None:
            (held.receipt,) = queue.extend(player.own, self.name, [held.receipt], seconds)

        self._use(player, "extend", extended, seconds=seconds)

    def wait(self, _: Player) -> None:
        """A while."""
        self._pass(self.chance.uniform(0, VISIBLE))

    def sweep(self, player: Player) -> None:
        """The daemon's, which moves the position of a queue from which nobody receives."""
        try:
            sweep(player.own)
        except Exception as error:
            self._require_contention(error)
            return
        self.recorder.write("sweep", "ok")

    def _use(self, player: Player, how: str, use: Any, **fields: float) -> None:
        if not player.held:
            return
        held = self.chance.choice(player.held[-2:])
        call = self.calls.begin(how, held.receipt, **fields)
        before = held.receipt
        try:
            use(held)
        except Exception as error:
            self._require_contention(error)
            self.calls.end("fail", call)
            return
        more = {} if held.receipt == before else {"renewed": str(held.receipt)}
        self.calls.end("ok", call, **more)

    def _pass(self, seconds: float) -> None:
        """Time passes for all that nobody has locked; for the rest the clock stands still."""
        own = self.players[0].own
        for table, column in (("queue_ranges", "deadline"), ("queue_waiting", "due_at")):
            try:
                with sessions.of_connection(own).transaction(own):
                    self._age(own, table, column, seconds)
            except Exception as error:
                self._require_contention(error)
        pass_time_of(own, "queue_turns", 0)
        self.recorder.write("pass_time", "ok", seconds=seconds)

    def _age(self, own: Any, table: str, column: str, seconds: float) -> None:
        found = f"SELECT subscription_id, id FROM penstock.{table} FOR UPDATE SKIP LOCKED"
        rows = database.execute(own, found)
        if not rows:
            return
        owner, ids = rows[0][0], ", ".join(str(number) for _, number in rows)
        interval, given = "interval '1 second' * %(seconds)s", seconds
        if self.db.engine != "postgres":
            interval, given = "INTERVAL %(seconds)s MICROSECOND", int(seconds * 1_000_000)
        database.execute(
            own,
            f"UPDATE penstock.{table} SET {column} = {column} - {interval}"
            f" WHERE subscription_id = {owner} AND id IN ({ids})",
            {"seconds": given},
        )

    def _require_contention(self, error: Exception) -> None:
        """A refusal, or a lock that it did not get; anything else is no result."""
        is_result = isinstance(error, PenstockError) or database.is_contention(error)
        if not is_result and not self._is_mutant:
            raise error

    def _connect(self, *, autocommit: bool) -> Any:
        connection = self.db.connect(autocommit=autocommit)
        database.execute(connection, self._patience)
        if not autocommit:
            connection.commit()
        return connection

    def _finish(self, rounds: int = MOST_ROUNDS) -> None:
        """One worker alone does what is left."""
        last = self.players[0]
        for _ in range(rounds):
            self._pass(3 * VISIBLE)
            last.held = []
            self.receive(last, most=50)  # the last one finds nothing, and moves the position
            if queue.statistics(last.own, self.name).size == 0:
                break
            for held in list(last.held):
                last.held = [held]
                self.acknowledge(last)
