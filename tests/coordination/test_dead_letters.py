"""Dead letters of consumers with their leases in etcd, Redis or memory: one each, and fenced."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.consumer.stream.consumer import Consumer
from penstock.errors import CoordinationUnavailable, StaleLease
from penstock.leases.coordination import registry_keeper
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, stream
from penstock.subscriptions.dead_letters import Redriven
from penstock.subscriptions.stream import Membership
from tests import servers
from tests.command import run
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import keyed
from tests.contract.kit import count
from tests.contract.stream_guards import NO_EPOCH
from tests.contract.stream_kit import Guard, end_lease, without
from tests.coordination.consuming import Seen, consumer, expired, killed, memory, stopped
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    SUBSCRIPTION,
    filled,
    member_with_lease,
    retry,
    running,
    slow_leases,
    stored,
)

EACH_ENGINE = pytest.mark.parametrize("db", servers.DATABASES, indirect=True)
#: Who holds nothing writes as if another store had given out what a consumer of this one holds.
NO_HOLDER: Guard = {
    "postgres": ("hold_leases", "AND l.holder IS NOT DISTINCT FROM consumer", ""),
    "mysql": ("hold_lease", "AND l.holder <=> consumer", ""),
}


class Poison(Seen):
    """Fails at some places, each a partition and a sequence, until it is mended."""

    def __init__(self, *places: tuple[int, int]) -> None:
        super().__init__()
        self.places = set(places)
        self.tries: Counter[tuple[int, int]] = Counter()

    def __call__(self, event: Event) -> None:
        place = (event.partition, event.sequence)
        self.tries[place] += 1
        if place in self.places:
            raise ValueError("poison")
        super().__call__(event)


class Crash(BaseException):
    """The process ends here."""


def letters_of(connection: Any) -> list[tuple[int, int, str, int]]:
    """A partition, a sequence, a state and a number of attempts for each."""
    found = dead_letters.dead_letters(connection, SUBSCRIPTION)
    return sorted((each.partition, each.sequence, each.state, each.attempts) for each in found)


def worked_off(
    url: str, store: str | None, handler: Callable[[Event], object], until: Callable[[], bool]
) -> Consumer:
    """A consumer that runs until something holds, and then leaves."""
    made = consumer(url, store, handler)
    with running(made):
        wait_until(until, "it is worked off")
    return made


def poisoned(connection: Any, url: str, store: str) -> Poison:
    """One of ten events fails twice and is a letter."""
    filled(connection, 2, 5)
    retry(connection, max_attempts=2)
    handler = Poison((0, 3))
    made = worked_off(url, store, handler, lambda: handler.count == 9)
    assert made.stats.dead_letters == 1
    return handler


@proves("D7, S24 for letters with positions elsewhere")
def test_a_poison_event_is_one_letter(
    connection: Connection, database_url: str, store: str
) -> None:
    """The others of its partition go on, in order; nobody gets it again.  It is redriven once."""
    handler = poisoned(connection, database_url, store)
    assert handler.sequences == {0: [1, 2, 4, 5], 1: [1, 2, 3, 4, 5]}
    assert handler.tries[0, 3] == 2
    assert letters_of(connection) == [(0, 3, "dead", 2)]
    assert [stored(connection, each) for each in range(2)] == [5, 5]
    assert dead_letters.redrive(connection, SUBSCRIPTION) == 1
    again = Seen()
    for _ in range(2):
        consumer(database_url, store, again).run_until_idle()
    assert again.sequences == {0: [3]}
    assert letters_of(connection) == []


@EACH_ENGINE
def test_on_each_engine(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A letter that fails again is dead again; the commands work on it as on any other."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    connection, store = db.connect(), memory()
    handler = poisoned(connection, db.url, store)
    command = ("dead-letter", "list", SUBSCRIPTION, "--output", "json")
    (row,) = run(capsys, *command).rows
    letter = str(row["id"])
    assert (row["sequence"], row["state"]) == (3, "dead")
    assert run(capsys, "dead-letter", "redrive", SUBSCRIPTION, letter).code == 0
    consumer(db.url, store, handler).run_until_idle()
    assert letters_of(connection) == [(0, 3, "dead", 3)]
    assert run(capsys, "dead-letter", "drop", SUBSCRIPTION, letter, "--yes").code == 0
    assert letters_of(connection) == []


# -- a consumer that ends between the letter and the store's position ------------------------------


def crashed(
    monkeypatch: pytest.MonkeyPatch, url: str, store: str, handler: Callable[[Event], object]
) -> None:
    """A consumer whose process ends when its letter is written, before the store knows."""

    def ends(keeper: RegistryKeeper, *_: object) -> None:
        stopped(keeper)
        expired(keeper)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RegistryKeeper, "follow_position", crash)
        patch.setattr(RegistryKeeper, "__exit__", ends)
        with pytest.raises(Crash):
            consumer(url, store, handler).run(threading.Event())


def behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every position of the database is 0."""
    real = registry_keeper._stands

    def stands(connection: Any, subscription: str) -> dict[int, tuple[int, int]]:
        known = real(connection, subscription)
        return {each: (lease_epoch, 0) for each, (lease_epoch, _) in known.items()}

    monkeypatch.setattr(registry_keeper, "_stands", stands)
    careless(monkeypatch)


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: nobody suspects the next events.  Else the database would refuse to count them."""
    monkeypatch.setattr(RegistryKeeper, "suspects", lambda *_: {})


def killed_between(connection: Any, url: str, store: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What a second consumer handles, after the first has ended behind the letter of event 3."""
    filled(connection, 1, 5)
    slow_leases(connection)
    retry(connection, max_attempts=1)
    crashed(monkeypatch, url, store, Poison((0, 3)))
    assert letters_of(connection) == [(0, 3, "dead", 1)]
    seen = Seen()
    consumer(url, store, seen, "b").run_until_idle()
    assert letters_of(connection) == [(0, 3, "dead", 1)]
    assert stored(connection) == 5
    return seen


@proves("D7, S24 for letters with positions elsewhere")
def test_killed_between_the_letter_and_the_position(
    connection: Connection, database_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One letter, and its event comes no more.  Guard: RegistryKeeper._taken_up, which follows."""
    seen = killed_between(connection, database_url, store, monkeypatch)
    assert seen.sequences == {0: [4, 5]}


@proves("D7, S24 for letters with positions elsewhere", guard="following it")
def test_without_a_look_at_the_database_it_is_handled_too(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nobody sees that the database is ahead of the store."""
    behind(monkeypatch)
    seen = killed_between(connection, database_url, memory(), monkeypatch)
    assert seen.sequences == {0: [3, 4, 5]}


def test_the_store_is_away_between_the_letter_and_the_position(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same process goes on.  Guard: RegistryKeeper.look_again, which forgets what was told."""
    filled(connection, 1, 5)
    slow_leases(connection)
    retry(connection, max_attempts=1)
    handler, real = Poison((0, 3)), RegistryKeeper.follow_position
    away = [CoordinationUnavailable("away")]

    def follow(*given: Any) -> None:
        if away:
            raise away.pop()
        real(*given)

    monkeypatch.setattr(RegistryKeeper, "follow_position", follow)
    worked_off(database_url, memory(), handler, lambda: handler.count == 4)
    assert handler.sequences == {0: [1, 2, 4, 5]}
    assert handler.tries[0, 3] == 1
    assert letters_of(connection) == [(0, 3, "dead", 1)]


# -- the fence -------------------------------------------------------------------------------------


def writing(own: Any, member: Membership, lease: Lease) -> Iterable[Callable[[], object]]:
    """Each call that writes, of a holder that stands at 2."""
    letter = Redriven(1, lease, None, 1, parked=False)  # type: ignore[arg-type]
    yield lambda: dead_letters.begin_attempt(own, member, lease, 3)
    yield lambda: dead_letters.give_up(own, member, lease, 3, "bad", attempts=1)
    yield lambda: dead_letters.commit_parking(own, member, lease, 4, after=2, sequences=[4])
    yield lambda: dead_letters.finish_redriven(own, member, letter)
    yield lambda: dead_letters.fail_redriven(own, member, letter, "bad")


@proves("D7, S24 for letters with positions elsewhere")
def test_a_stale_holder_writes_no_letter(
    connection: Connection, database_url: str, store: str
) -> None:
    """D7.  It moves no position either; the letter of the present holder is written."""
    filled(connection, 1, 5)
    slow_leases(connection)
    dead = killed(database_url, store)
    dead.take_up(connection)
    (old,) = dead.leases()
    dead.commit(connection, [(old, 2)], [0])
    dead.record_position(connection, old, 2)
    expired(dead)
    with RegistryKeeper(database_url, SUBSCRIPTION, store, consumer="b") as fresh:
        fresh.take_up(connection)
        (lease,) = fresh.active()
        for call in (
            *writing(connection, dead.member, old),
            lambda: dead.record_position(connection, old, 3),
        ):
            with pytest.raises(StaleLease):
                call()
        assert dead_letters.poll_redriven(connection, dead.member, [old]) == []
        assert (letters_of(connection), stored(connection)) == ([], 2)
        dead_letters.give_up(connection, fresh.member, lease, 3, "bad", attempts=1)
        fresh.follow_position(connection, lease, 3)
        assert fresh.position(connection, lease) == stored(connection) == 3
    assert letters_of(connection) == [(0, 3, "dead", 1)]


@proves("D7, S24 for letters with positions elsewhere", guard="the lease_epoch")
@EACH_ENGINE
@pytest.mark.parametrize("is_guarded", [True, False])
def test_the_fence_of_each_engine(db: ContractDatabase, is_guarded: bool) -> None:
    """Guard: the lease_epoch in hold_leases.  Mutant: one that is over is accepted."""
    own, store = db.connect(), memory()
    filled(own, 1, 5)
    slow_leases(own)
    dead = killed(db.url, store)
    dead.take_up(own)
    (old,) = dead.leases()
    dead.commit(own, [(old, 2)], [0])
    expired(dead)
    with RegistryKeeper(db.url, SUBSCRIPTION, store, consumer="b") as fresh:
        fresh.take_up(own)
        attempt, give_up, *_ = calls = list(writing(own, dead.member, old))
        if not is_guarded:
            without(db, NO_EPOCH)
            attempt()
            give_up()
            assert (letters_of(own), stored(own)) == ([(0, 3, "dead", 1)], 3)
            return
        for call in calls:
            with pytest.raises(StaleLease):
                call()
        assert (count(db, "attempts"), letters_of(own), stored(own)) == (0, [], 2)


@proves("D7, S24 for letters with positions elsewhere", guard="leases of the database")
@EACH_ENGINE
@pytest.mark.parametrize("is_guarded", [True, False])
def test_leases_of_the_database_are_not_another_stores(
    db: ContractDatabase, is_guarded: bool
) -> None:
    """Guard: hold_leases, where no consumer is named: nobody may hold the lease here."""
    own = db.connect()
    filled(own, 1, 5)
    member, lease = member_with_lease(own, "a")
    stream.commit(own, member, [(lease, 2)])
    foreign = Membership(SUBSCRIPTION, "b", member.session, 3, 10, elsewhere=True)
    attempt, give_up, *_ = calls = list(writing(own, foreign, lease))
    if not is_guarded:
        without(db, NO_HOLDER)
        attempt()
        give_up()
        assert letters_of(own) == [(0, 3, "dead", 1)]
        return
    for call in calls:
        with pytest.raises(StaleLease):
            call()
    assert (count(db, "attempts"), letters_of(own), stored(own)) == (0, [], 2)


@EACH_ENGINE
def test_who_died_in_the_database_holds_nothing_up(db: ContractDatabase) -> None:
    """Nobody has swept it yet.  Its leases end, and it is remembered that it died."""
    own = db.connect()
    filled(own, 1, 5)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    end_lease(db, "a")
    seen = Seen()
    with RegistryKeeper(db.url, SUBSCRIPTION, store := memory(), consumer="b") as fresh:
        fresh.take_up(own)
        (present,) = fresh.active()
        assert present.lease_epoch > lease.lease_epoch
        assert fresh.suspects(own, [present])[lease.partition_id].died
        with pytest.raises(StaleLease):
            stream.commit(own, member, [(lease, 1)])
    assert consumer(db.url, store, seen).run_until_idle() == 5
    assert stored(own) == 5


@proves("D7, S24 for letters with positions elsewhere", guard="telling the database before work")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_it_is_handled_or_a_letter(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A handler fails after its lease has ended, and its successor has handled the event.

    Guard: RegistryKeeper.take_up, before the successor hands anything out.
    """
    filled(connection, 1, 1)
    slow_leases(connection)
    retry(connection, max_attempts=1)
    store, gate, begun, seen = memory(), threading.Event(), threading.Event(), Seen()

    def fails(_: Event) -> None:
        begun.set()
        assert gate.wait(20)
        raise ValueError("poison")

    first = consumer(database_url, store, fails, "a")
    with running(first):
        assert begun.wait(20)
        expired(first.keeper)  # type: ignore[arg-type]
        if not is_guarded:
            monkeypatch.setattr(registry_keeper, "tell_database", lambda *_: 0)
            careless(monkeypatch)
        with running(consumer(database_url, store, seen, "b")):
            wait_until(lambda: seen.count == 1, "the successor has handled it")
            monkeypatch.undo()
            gate.set()
            wait_until(lambda: first.stats.failures > 1, "the first has tried to give it up")
    assert letters_of(connection) == ([] if is_guarded else [(0, 1, "dead", 1)])


# -- attempts, parked keys, moving -----------------------------------------------------------------


def test_an_event_that_ends_its_consumers_is_a_letter(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: RegistryKeeper.suspects, and begin_attempt before it is handed out again.

    The first two die with a batch and with a group, which count for none of its events.
    """
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, 1, 4)
    slow_leases(connection)
    retry(connection, max_attempts=2)
    store, died, gate, done = memory(), list[str](), threading.Event(), Seen()

    def dies_with(stack: ExitStack, name: str) -> None:
        def handle(event: Event) -> None:
            if event.sequence == 2:
                died.append(name)
                assert gate.wait(60)
            else:
                done(event)

        made = consumer(database_url, store, handle, name)
        stack.enter_context(running(made))
        stack.callback(gate.set)
        wait_until(lambda: died[-1:] == [name] or stored(connection) == 4, "it dies, or is done")
        expired(made.keeper)  # type: ignore[arg-type]

    with ExitStack() as stack:
        for name in "abcde":
            dies_with(stack, name)
        assert (died, letters_of(connection)) == (["a", "b", "c", "d"], [(0, 2, "dead", 2)])
    assert sorted(set(done.sequences[0])) == [1, 3, 4]


@EACH_ENGINE
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_parked_key_waits_and_comes_in_order(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Also when the consumer ends between the letter, or what it parks, and the position."""
    own, store = keyed(db, "a1 b1 a2 b2 a3"), memory()
    slow_leases(own)
    retry(own, max_attempts=1, exhausted="park_key")
    handler = Poison((0, 1))
    if is_killed:
        crashed(monkeypatch, db.url, store, handler)  # after the letter of a1
        crashed(monkeypatch, db.url, store, handler)  # after a2 or more was parked
    worked_off(db.url, store, handler, lambda: len(letters_of(own)) == 3)
    assert sorted(set(handler.sequences[0])) == [2, 4]
    assert [each[1:3] for each in letters_of(own)] == [(1, "parked"), (3, "parked"), (5, "parked")]
    assert dead_letters.redrive(own, SUBSCRIPTION) == 3
    again = Seen()
    worked_off(db.url, store, again, lambda: not letters_of(own))
    assert again.sequences == {0: [1, 3, 5]}


def test_letters_stay_when_the_subscription_moves(
    connection: Connection,
    database_url: str,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There and back: dead ones, and one that was redriven before the way back."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    filled(connection, 2, 5)
    retry(connection, max_attempts=1)
    handler = Poison((0, 3), (1, 2))
    worked_off(database_url, None, handler, lambda: handler.count == 8)
    both = [(0, 3, "dead", 1), (1, 2, "dead", 1)]
    move = ("subscription", "move", SUBSCRIPTION, "--output", "json")
    assert run(capsys, *move, "--to", store).rows[0]["partitions"] == 2
    assert letters_of(connection) == both
    assert consumer(database_url, store, handler).run_until_idle() == 0
    newest = dead_letters.dead_letters(connection, SUBSCRIPTION)[0]
    dead_letters.redrive(connection, SUBSCRIPTION, [newest.id])
    assert run(capsys, *move, "--from", store, "--to", "database").rows[0]["partitions"] == 2
    states = sorted(state for _, _, state, _ in letters_of(connection))
    assert states == ["dead", "redriven"]
    seen = Seen()
    assert consumer(database_url, None, seen).run_until_idle() == 1
    assert seen.sequences == {newest.partition: [newest.sequence]}
    assert len(letters_of(connection)) == 1
