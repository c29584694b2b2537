"""Consumers in one process, interleaved by a seed, with everything that the fence must stop.

Every one keeps each lease that it ever had in mind and may commit under it: late, twice, after a
take-over, in a transaction that others overtake.  The history is that of :mod:`tests.faults.world`,
so the same checker judges it; tests run it on the product, and on mutants of it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from penstock import database
from penstock.errors import PenstockError
from penstock.publishing.publish import publish
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.faults.hooks import label_of
from tests.faults.told import Anomaly
from tests.faults.world import TOPIC, World
from tests.kit.log import drain

SUBSCRIPTION = "exact"
PARTITIONS = 2
STEPS, CHUNK = 60, 30


@dataclass
class Held:
    """What one run of a consumer has read and means to commit."""

    member: Membership
    lease: Lease
    events: list[Event]


@dataclass
class Player:
    """A consumer with two connections: one for its transactions, one for everything else."""

    name: str
    own: Any
    work: Any
    member: Membership | None = None
    leases: list[tuple[Membership, Lease]] = field(default_factory=list)
    read: list[Held] = field(default_factory=list)
    open: Held | None = None
    position: int = 0
    begun: dict[str, float] = field(default_factory=dict)


class Play:
    """Random steps of three players; a refusal, or a lock that it does not get, is a result."""

    def __init__(self, db: ContractDatabase, folder: Path, seed: int) -> None:
        self.db = db
        self.chance = random.Random(seed)
        # Deadlines end by hand only, so that nothing depends on how fast the machine is.
        self.world = World(db.url, folder, PARTITIONS, heartbeat=20, lease=600)
        self.world.subscriptions = (SUBSCRIPTION,)
        self.players: list[Player] = []
        self._transactions = count(1)
        self._patience = "SET lock_timeout = '100ms'"
        if db.engine != "postgres":
            self._patience = "SET SESSION innodb_lock_wait_timeout = 1"

    def run(self, steps: int = STEPS) -> list[Anomaly]:
        """The verdict on so many steps, after which what is left is read."""
        with self.world:
            self._begin_play()
            self._go(steps)
            self._finish()
            return self.world.verdict()

    def shows(self, kind: str, chunks: int = 20) -> bool:
        """Whether the checker comes to see an anomaly of this kind."""
        with self.world:
            self._begin_play()
            for _ in range(chunks):
                self._go(CHUNK)
                if kind in {each.kind for each in self.world.verdict()}:
                    return True
        return False

    def _begin_play(self) -> None:
        self.world.set_up()
        self.recorder = self.world.recorder
        self.players = [self._player(name) for name in "abc"]
        for _ in range(3):
            self.publish(self.players[0])

    def _go(self, steps: int) -> None:
        moves = [
            *([self.publish] * 2 + [self.check_in] * 5 + [self.read] * 6 + [self.commit] * 5),
            *([self.late_commit] * 3 + [self.begin] * 3 + [self.end] * 3 + [self.die] * 2),
            *([self.overtake] * 4 + [self.leave, self.again, self.seek, self.ahead]),
        ]
        for _ in range(steps):
            self.chance.choice(moves)(self.chance.choice(self.players))
        for each in self.players:
            self.end(each)

    def publish(self, _: Player) -> None:
        """A transaction of three events, now and then rolled back; sequenced at once."""
        name = f"t-{next(self._transactions)}"
        events = [f"{name}/{number}" for number in range(3)]
        self.recorder.write("publish", "invoke", tx=name)
        connection = self.db.connect(autocommit=False)
        for number, label in enumerate(events):
            publish(connection, TOPIC, label.encode(), key="k", partition=number % PARTITIONS)
        self.recorder.write("stage", "ok", tx=name, events=events, undone=[])
        keeps = self.chance.random() < 0.8
        connection.commit() if keeps else connection.rollback()
        self.recorder.write("publish", "ok" if keeps else "fail", tx=name)
        connection.close()
        drain(self.players[0].own)

    def check_in(self, player: Player) -> None:
        """Joins first if need be."""
        begun = self.recorder.begun()
        names: dict[str, Any] = {"sub": SUBSCRIPTION, "consumer": player.name}
        try:
            if player.member is None:
                player.member = stream.join(player.own, SUBSCRIPTION, player.name)
                self.recorder.write("join", "ok", **names, **begun)
            found = stream.check_in(player.own, player.member)
        except Exception as error:
            player.member = player.member if self._refused(error) else None
            return
        self.recorder.write("check_in", "ok", **names, **begun)
        asked = [lease for lease in found if lease.state == "RELEASING"]
        if asked and player.open is None:
            stream.release(player.own, player.member, asked)
        player.leases += [(player.member, lease) for lease in found if lease not in asked]

    def read(self, player: Player, most: int = 4) -> None:
        """Polls one of the newest leases that it has in mind."""
        if not player.leases:
            return
        member, lease = self.chance.choice(player.leases[-2:])
        begun = self.recorder.begun()
        for polled, events in stream.poll(
            player.own, member, [lease], self.chance.randint(1, most)
        ):
            labels = [[event.sequence, label_of(event)] for event in events]
            self.recorder.write(
                "poll", "ok", sub=SUBSCRIPTION, partition=polled.partition,
                epoch=polled.lease_epoch, events=labels, **begun,
            )  # fmt: skip
            player.read.append(Held(member, polled, events))

    def commit(self, player: Player) -> None:
        """The newest batch, in a transaction of its own."""
        if player.read and player.open is None:
            self._begin(player, player.read[-1])
            self.end(player)

    def late_commit(self, player: Player) -> None:
        """One of the last batches, whatever has become of its lease: also one that is done."""
        if player.read and player.open is None:
            self._begin(player, self.chance.choice(player.read[-6:]))
            self.end(player)

    def ahead(self, player: Player) -> None:
        """A commit of what nobody has read, and what the log has not."""
        if player.read and player.open is None:
            self._begin(player, player.read[-1], further=1000)
            self.end(player)

    def begin(self, player: Player) -> None:
        """A commit call whose COMMIT comes some steps later."""
        if player.read and player.open is None:
            self._begin(player, player.read[-1])

    def overtake(self, player: Player) -> None:
        """Another one looks at what is held between a commit call and its COMMIT."""
        self.begin(player)
        self.die(player)
        other = self.chance.choice([each for each in self.players if each is not player])
        self.check_in(other)
        self.read(other)
        self.end(player)

    def end(self, player: Player) -> None:
        """COMMIT."""
        held, player.open = player.open, None
        if held is None:
            return
        player.begun["sent"] = time.monotonic()
        try:
            player.work.commit()
            outcome = "ok"
        except Exception:
            outcome = "fail"
            player.work = self._connect(autocommit=False)
        self._write_commit(player, held, outcome)
        if outcome == "ok":
            self._moved(player, held)

    def die(self, player: Player) -> None:
        """As if it had been paused past its lease."""
        end_lease(self.db, player.name)
        names = {"sub": SUBSCRIPTION, "consumer": player.name}
        self.recorder.write("end_lease", "ok", **names, **self.recorder.begun())

    def leave(self, player: Player) -> None:
        """Gives everything back, and is another run when it comes again."""
        if player.member is None or self.chance.random() < 0.5:
            return
        begun = self.recorder.begun()
        stream.leave(player.own, player.member)
        self.recorder.write("leave", "ok", sub=SUBSCRIPTION, consumer=player.name, **begun)
        player.member = None

    def again(self, player: Player) -> None:
        """Another run of the id: the first one does not learn of it."""
        player.member = None

    def seek(self, player: Player) -> None:
        """Back to an earlier event."""
        try:
            start = self.chance.choice(["earliest", "1", "2"])
            stream.seek(player.own, SUBSCRIPTION, TOPIC, self.chance.randrange(PARTITIONS), start)
        except Exception as error:
            self._refused(error)

    def _begin(self, player: Player, held: Held, further: int = 0) -> None:
        player.begun = self.recorder.begun()
        player.position = held.events[-1].sequence + further
        last, first = player.position, held.events[0].sequence
        try:
            stream.commit(player.work, held.member, [(held.lease, last)], after=[first - 1])
            for event in held.events:
                database.execute(
                    player.work, "INSERT INTO effects (sub, part, seq, label) VALUES"
                    " (%(sub)s, %(part)s, %(seq)s, %(label)s)",
                    {"sub": SUBSCRIPTION, "part": event.partition, "seq": event.sequence,
                     "label": label_of(event)},
                )  # fmt: skip
            player.open = held
        except Exception as error:
            self._refused(error)
            self._write_commit(player, held, "fail")
            player.work.rollback()

    def _write_commit(self, player: Player, held: Held, outcome: str) -> None:
        self.recorder.write(
            "commit", outcome, sub=SUBSCRIPTION, partition=held.lease.partition,
            epoch=held.lease.lease_epoch, position=player.position, **player.begun,
        )  # fmt: skip

    def _moved(self, player: Player, held: Held) -> None:
        """Reads go on after it, under every run of this lease."""
        last, done = player.position, held.lease
        for number, (member, lease) in enumerate(player.leases):
            if lease.partition == done.partition and lease.lease_epoch == done.lease_epoch:
                further = replace(lease, position=max(lease.position, last))
                player.leases[number] = member, further

    def _refused(self, error: Exception) -> bool:
        """True for a lock that was not had, False for what the protocol refuses."""
        if isinstance(error, PenstockError):
            return False
        if not database.is_contention(error):
            raise error
        return True

    def _player(self, name: str) -> Player:
        return Player(name, self._connect(autocommit=True), self._connect(autocommit=False))

    def _connect(self, *, autocommit: bool) -> Any:
        connection = self.db.connect(autocommit=autocommit)
        database.execute(connection, self._patience)
        if not autocommit:
            connection.commit()
        return connection

    def _finish(self) -> None:
        """One player alone reads what is left."""
        for each in self.players[1:]:
            self.die(each)
        last = self.players[0]
        self.die(last)
        last.member = None
        for _ in range(10):
            if not self.world.lag(last.own, SUBSCRIPTION):
                break
            last.leases = []
            self.check_in(last)
            for pair in list(last.leases):
                last.leases, last.read = [pair], []
                self.read(last, most=1000)
                self.commit(last)
