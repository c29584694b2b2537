"""The attack: all that can publish, read, sequence and clean runs at once, and is killed.

Beside what :class:`Mixed` does: publishers of every kind (``crowd``), consumers that are nothing
but SQL (``raw``), several sequencers, and what cleans (``janitor``), each killed and paused;
sessions that are ended from inside the database; servers killed right after a COMMIT.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from contextlib import closing
from typing import Any

from penstock import database
from penstock.errors import PenstockError
from tests.faults.crowd import TWO_PHASES
from tests.faults.mixed import PUBLISHERS, Mixed
from tests.faults.servers import Crashing
from tests.faults.world import TOPIC, World

#: PENSTOCK_FAULT_KILL_QUERY=0 leaves KILL QUERY and pg_cancel_backend out.
KILL_QUERY = os.environ.get("PENSTOCK_FAULT_KILL_QUERY", "")
#: How long a transaction may be in doubt before somebody settles it.
DOUBT_SECONDS = 4.0
SLICES = 40

IN_DOUBT = {
    "postgres": "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
    "mysql": "XA RECOVER",
}
SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'",
    "mysql": "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
    " AND USER NOT IN ('event_scheduler', 'system user') AND COMMAND IN ('Query', 'Execute')",
}
CANCEL = {"postgres": "SELECT pg_cancel_backend({})", "mysql": "KILL QUERY {}"}
END_SESSION = {"postgres": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


class Attack(Mixed):
    """Faults drawn by a seed until so many events are published."""

    def __init__(self, world: World, server: Crashing, seed: int) -> None:
        super().__init__(world, server, seed)
        self.faults |= {
            "hold up": self.hold_up,
            "cancel": self.cancel,
            "end sessions": self.end_sessions,
            "crash behind a commit": self.crash_behind_a_commit,
        }
        self._doubts: dict[str, float] = {}
        self._settled_at = 0.0
        self._settled = random.Random(seed)

    def begin_attack(self, crowd: int, hold: float, *options: str) -> None:
        """Start everybody; ``hold`` is how long some transactions are open for."""
        world = self.world
        world.set_up()
        with closing(world.connect()) as own:
            cut_small(own, world.engine)
            kept = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": ["disk"]}
            database.call(own, "set_retention", max_bytes=None, topic=TOPIC, **kept)
        world.tend = self.tend
        for number in range(2):
            world.start("sequencer", f"s{number}", *self.pace)
            world.start("janitor", f"j{number}", "--pause", "0.5", *options)
            self.consumer("exact", f"exact{number}", "--immune", "--batch=500")
            self.consumer("raw", f"raw{number}", "--batch=500")
        for number in range(crowd):
            drawn = ["--seed", str(self.chance.random())[2:9], *options]
            world.start("crowd", f"p{number}", *drawn)
        if hold:
            held = ["--hold", str(hold), "--holds=0.02", "--way=few", "--way=batch"]
            world.start("crowd", "holder", *held, *options)
        world.until(lambda: world.records("commit", sub="exact"), "the product's commit")
        world.until(lambda: world.records("commit", sub="raw"), "those of SQL alone commit")

    def consumer(self, subscription: str, name: str, *options: str) -> None:
        """A process of the product's, or one that is nothing but SQL."""
        role = "raw" if subscription == "raw" else "consumer"
        self.world.start(role, name, "--subscription", subscription, *options)

    def attack(self, faults: list[str], events: int, *, again: bool) -> None:
        """These faults, and perhaps again and again, until so many events are committed."""
        self.play(faults)
        while again and self.published() < events:
            self.play(self.chance.sample(faults, len(faults) // 4))
        self.world.until(lambda: self.published() >= events, f"{events} events are published")

    def published(self) -> int:
        """How many events are in transactions whose COMMIT succeeded."""
        return sum(each["count"] for each in self.world.records("publish"))

    def tend(self) -> None:
        """What has ended is started again, and what is in doubt for long is settled."""
        self.world.revive()
        if time.monotonic() > self._settled_at + 0.5:
            self._settled_at = time.monotonic()
            with contextlib.suppress(Exception), closing(self.world.connect()) as own:
                self.settle(own)

    def settle(self, connection: Any, patience: float = DOUBT_SECONDS) -> int:
        """Commit or roll back by a coin what is in doubt for long.  Returns how many there are."""
        rows = database.execute(connection, IN_DOUBT[self.world.engine])
        names = [row[-1].decode() if isinstance(row[-1], bytes) else row[-1] for row in rows]
        now = time.monotonic()
        self._doubts = {each: self._doubts.get(each, now) for each in names}
        for name, since in self._doubts.items():
            if now >= since + patience:
                with contextlib.suppress(Exception):  # its publisher was faster, or has it still
                    self._settle_one(connection, name)
        return len(names)

    def _settle_one(self, connection: Any, name: str) -> None:
        *_, commit, roll_back = TWO_PHASES[self.world.engine]
        keeps = random.Random(f"{self.seed} {name}").random() < 0.5
        self.world.recorder.write("settle", "invoke", tx=name, keeps=keeps)
        database.execute(connection, (commit if keeps else roll_back).format(name))
        self.world.recorder.write("settle", "ok" if keeps else "fail", tx=name)
        self.world.done["settled"] += 1

    def hold_up(self) -> None:
        """F3 for a sequencer, a publisher or a janitor: it stands still."""
        running = self.world.running.values()
        name = self._chosen({each.role for each in running} - {"consumer", "raw"})
        self.world.stop(name)
        self.wait(self.chance.uniform(0.5, 1.5 * self.world.lease))
        self.world.go_on(name)

    def cancel(self) -> None:
        """What sessions are at is cancelled; on MySQL their transactions go on."""
        kills = KILL_QUERY != "0"
        self._at_sessions("cancel", (CANCEL if kills else END_SESSION)[self.world.engine])

    def end_sessions(self) -> None:
        """Sessions are ended from inside the database."""
        self._at_sessions("end session", END_SESSION[self.world.engine])

    def _at_sessions(self, fault: str, statement: str) -> None:
        with closing(self.world.connect()) as own:
            for _ in range(10):
                rows = database.execute(own, SESSIONS[self.world.engine])
                if rows:
                    self.world.note(fault)
                    ((session,),) = self.chance.sample(rows, 1)
                    with contextlib.suppress(Exception):  # it has ended by itself
                        database.execute(own, statement.format(int(session)))
                time.sleep(self.chance.uniform(0, 0.03))

    def crash_behind_a_commit(self) -> None:
        """F6, as soon as the next COMMIT has succeeded."""
        before = len(self.world.records("publish"))
        self.world.until(lambda: len(self.world.records("publish")) > before, "a COMMIT")
        self.crash()

    def pause_in_transaction(self) -> None:
        """F3 between a commit call and its COMMIT, also of one that is nothing but SQL."""
        self.zombie(self.chance.choice(["exact", "raw"]))

    def failpoint(self) -> None:
        """F1 at a place round the COMMIT."""
        subscription = self.chance.choice(["exact", "raw"])
        place = self.chance.choice(["commit.before", "commit.after"])
        self.doomed(subscription, place)

    def seek(self) -> None:
        """F24, where what it goes back to is not dropped in this moment."""
        with contextlib.suppress(PenstockError):
            super().seek()

    def end_attack(self, seconds: float) -> None:
        """Publishers stop, what is in doubt is settled, everything is drained, all leave."""
        running = list(self.world.running.values())
        for name in [each.name for each in running if each.role in PUBLISHERS]:
            assert self.world.terminate(name) == 0, name
        self.world.until(self._nothing_is_in_doubt, "what is in doubt is settled")
        self.world.drain(seconds)
        self.world.tend = None
        for name in list(self.world.running):
            assert self.world.terminate(name) == 0, name

    def _nothing_is_in_doubt(self) -> bool:
        with closing(self.world.connect()) as own:
            return self.settle(own, 0) == 0


def cut_small(connection: Any, engine: str) -> None:
    """Slices of events that are full soon, so that they are dropped while the attack goes on."""
    if engine == "mysql":
        bounds = [(200 * n, 51_200 * (n + 1)) for n in range(SLICES)]
        bounds.append((200 * SLICES, 256_000_000_000))
        slices = ", ".join(f"PARTITION b{n} VALUES LESS THAN ({end})" for n, end in bounds)
        cut = f"ALTER TABLE penstock.events PARTITION BY RANGE (id) ({slices})"
        database.execute(connection, cut)
        return
    large = "SELECT slice FROM penstock.slices WHERE parent = 'events'"
    for (name,) in database.execute(connection, large):
        database.execute(connection, f'DROP TABLE penstock."{name}"')
    database.execute(connection, "DELETE FROM penstock.slices WHERE parent = 'events'")
    for _ in range(SLICES):
        database.execute(connection, "SELECT penstock.add_slice('events', 10000)")
    database.execute(connection, "SELECT penstock.ensure_slices()")
