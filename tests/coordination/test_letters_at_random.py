"""Random consumers that share a store, lose leases and end anywhere: handled, or one letter."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.leases.coordination import marks, registry_keeper
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.subscriptions import dead_letters
from tests.coordination.consuming import expired, memory, stopped
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, slow_leases

EVENTS, STEPS = 12, 40
#: In these, one that begins without telling the database is noticed.
SEEDS = (0, 1)


class Actor:
    """A consumer step by step: it may be paused, and lose its lease, between any two steps."""

    def __init__(self, connection: Any, keeper: RegistryKeeper, rng: random.Random) -> None:
        self.handled: list[int] = []
        self._connection = connection
        self._keeper = keeper
        self._rng = rng
        self._script = self._work()

    def step(self) -> bool:
        """Whether it goes on."""
        try:
            return next(self._script, False)
        except PenstockError:  # refused: the lease is another's, or the store says it has ended
            return False

    def lose(self) -> None:
        """Its lease time has passed; it does not know."""
        if self._keeper.consumer in self._keeper._registry.active_consumers():
            expired(self._keeper)

    def _work(self) -> Any:
        own, keeper = self._connection, self._keeper
        keeper.take_up(own)
        while keeper.active():
            (lease,) = keeper.active()
            sequence = lease.position + 1
            if sequence > EVENTS:
                return
            yield True
            if self._rng.random() < 0.5:
                keeper.commit(own, [(lease, sequence)], [lease.position])
                self.handled.append(sequence)
                continue
            keeper.record_position(own, lease, lease.position)
            yield True
            dead_letters.give_up(own, keeper.member, lease, sequence, "bad", attempts=1)
            yield self._rng.random() < 0.8  # or it ends here
            keeper.follow_position(own, lease, sequence)


def played(connection: Any, url: str, seed: int) -> list[int]:
    """What was handled and what became a letter, in order, once each if nothing went wrong."""
    rng, store, names = random.Random(seed), memory(), itertools.count()
    actors: list[Actor] = []
    went_on: list[Actor] = []

    def begin() -> None:
        name = f"c{next(names)}"
        keeper = RegistryKeeper(url, SUBSCRIPTION, store, consumer=name).__enter__()
        stopped(keeper)
        actors.append(Actor(connection, keeper, rng))
        went_on.append(actors[-1])

    for _ in range(STEPS):
        if not went_on or rng.random() < 0.1:
            for each in went_on:
                each.lose()
            begin()
        chosen = rng.choice(went_on)
        if not chosen.step():
            chosen.lose()
            went_on.remove(chosen)
    for each in went_on:
        each.lose()
    begin()
    while went_on[-1].step():
        pass
    letters = [each.sequence for each in dead_letters.dead_letters(connection, SUBSCRIPTION)]
    return sorted(letters + [sequence for each in actors for sequence in each.handled])


def fresh(connection: Any) -> None:
    """The log, as before the first play."""
    connection.execute(
        "TRUNCATE penstock.dead_letters, penstock.attempts, penstock.positions RESTART IDENTITY"
    )


def plays(connection: Connection, url: str, seeds: Iterable[int]) -> list[int]:
    """The seeds whose outcome is not each event once."""
    filled(connection, 1, EVENTS)
    slow_leases(connection)
    rows = connection.execute(
        "SELECT subscription_id, partition_id, position, lease_epoch, reason"
        " FROM penstock.positions"
    ).fetchall()
    wrong = []
    for seed in seeds:
        if played(connection, url, seed) != list(range(1, EVENTS + 1)):
            wrong.append(seed)
        fresh(connection)
        for row in rows:
            connection.execute(
                "INSERT INTO penstock.positions (subscription_id, partition_id, position,"
                " lease_epoch, reason) VALUES (%s, %s, %s, %s, %s)",
                row,
            )
    return wrong


@proves("D7, S24 for letters with positions elsewhere", how="random interleavings")
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(range(40), marks=pytest.mark.long)])
def test_each_event_is_handled_or_one_letter(
    connection: Connection, database_url: str, seeds: Iterable[int]
) -> None:
    """D7 for letters: whoever is paused, replaced or ended between any two calls."""
    assert plays(connection, database_url, seeds) == []


@proves("D7, S24 for letters with positions elsewhere", guard="telling the database before work")
def test_the_plays_see_a_holder_that_tells_nobody(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: work begins before the database refuses the earlier holder."""

    real = marks.tell

    def tell(connection: Any, subscription: str, leases: Any) -> int:
        is_new = any(each.state == registry_keeper.CLAIMED for each in leases)
        return 0 if is_new else real(connection, subscription, leases)

    monkeypatch.setattr(registry_keeper, "tell_database", tell)
    assert plays(connection, database_url, SEEDS) == [*SEEDS]
