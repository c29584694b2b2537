"""The inbox: effects in a database of the application, exactly once, on every engine.

Here it is a schema on the same server, reached by a connection of its own: no transaction spans
the log and it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from penstock import database
from penstock.consumer.stream.consumer import Consumer
from penstock.errors import InvalidArgument, StaleLease
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, inbox, stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease, more, stored


@dataclass
class Delivered:
    """A batch as a consumer gives it to its handler."""

    lease: Lease
    events: list[Event]
    subscription: str = SUBSCRIPTION
    in_order: bool = True
    letter_id: int | None = None


class Killed(Exception):
    """The consumer's process ends here."""


def _app(db: ContractDatabase) -> Any:
    own = db.connect()
    inbox.create(own)
    inbox.create(own)  # S24
    database.execute(own, "CREATE TABLE effects (number INT)")
    return own


def _effects(app: Any) -> list[int]:
    rows = database.execute(app, "SELECT number FROM effects ORDER BY number")
    return [number for (number,) in rows]


def _write(app: Any, events: list[Event]) -> None:
    for event in events:
        binds = {"number": int(event.payload)}
        database.execute(app, "INSERT INTO effects VALUES (%(number)s)", binds)


def _work(app: Any, own: Any, member: Membership, lease: Lease, *, dies: bool = False) -> None:
    """Poll, handle in the application's database, commit the position."""
    for _, events in stream.poll(own, member, [lease], 5):
        with inbox.transaction(app, Delivered(lease, events)) as (connection, fresh):
            _write(connection, fresh)
        if dies:
            raise Killed
        stream.commit(own, member, [(lease, events[-1].sequence)])


def _crashed_between(db: ContractDatabase) -> list[int]:
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    with pytest.raises(Killed):
        _work(app, own, *member_with_lease(own, "a"), dies=True)
    end_lease(db, "a")
    more(own, events=2, start=4)
    _work(app, own, *member_with_lease(own, "b"))
    assert stored(own) == 5
    return _effects(app)


@proves("D6 in another database")
def test_a_crash_between_the_two_commits(db: ContractDatabase) -> None:
    """F1, D6.  Guard: what the inbox has is left out; the successor's batch is another one."""
    assert _crashed_between(db) == [1, 2, 3, 4, 5]


@proves("D6 in another database", guard="the position")
def test_without_the_position_the_effects_double(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the inbox does not move."""
    real = database.call

    def unmoved(connection: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
        if name == "move_inbox":
            binds["sequence"] = 0
        return real(connection, name, **binds)

    monkeypatch.setattr(database, "call", unmoved)
    assert _crashed_between(db) == [1, 1, 2, 2, 3, 3, 4, 5]


def _zombie(db: ContractDatabase) -> list[int]:
    """Its successor is done with a part of what it has read, and not with the events after it."""
    own, app = db.connect(), _app(db)
    filled(own, events=5)
    member, lease = member_with_lease(own, "a")
    ((_, events),) = stream.poll(own, member, [lease])
    end_lease(db, "a")
    successor, taken = member_with_lease(own, "b")
    with inbox.transaction(app, Delivered(taken, events[:2])) as (connection, fresh):
        _write(connection, fresh)
    stream.commit(own, successor, [(taken, 2)])
    stream.seek(own, SUBSCRIPTION, lease.topic, 0, 5)  # the operator skips 3 and 4
    try:
        with inbox.transaction(app, Delivered(lease, events)) as (connection, fresh):
            _write(connection, fresh)
    except StaleLease:
        pass
    return _effects(app)


@proves("D6 in another database")
def test_a_zombie_changes_nothing(db: ContractDatabase) -> None:
    """D7 in another database.  Guard: the lease_epoch of the last one that was here."""
    assert _zombie(db) == [1, 2]


@proves("D6 in another database", guard="the lease_epoch")
def test_without_the_epoch_it_does(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant."""
    monkeypatch.setattr(inbox, "_require_current", lambda *_: None)
    assert _zombie(db) == [1, 2, 3, 4, 5]


@proves("D6 in another database")
def test_a_zombie_that_was_first_is_not_repeated(db: ContractDatabase) -> None:
    """It has no lease any more, but its successor was not here yet: its effects count."""
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    ((_, events),) = stream.poll(own, member, [lease])
    end_lease(db, "a")
    successor, taken = member_with_lease(own, "b")
    with inbox.transaction(app, Delivered(lease, events)) as (connection, fresh):
        _write(connection, fresh)
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 3)])
    _work(app, own, successor, taken)
    assert _effects(app) == [1, 2, 3]
    assert stored(own) == 3


@proves("D6 in another database")
def test_a_zombie_inside_its_transaction_is_ended(db: ContractDatabase) -> None:
    """Its successor waits for the row, no longer than the limit; then the events are its own."""
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    ((_, events),) = stream.poll(own, member, [lease])
    paused = db.connect()
    with pytest.raises(Exception, match=r".") as ended:  # noqa: SIM117
        with inbox.transaction(paused, Delivered(lease, events), limit_seconds=1) as (_, fresh):
            _write(paused, fresh)
            end_lease(db, "a")
            _work(app, own, *member_with_lease(own, "b"))  # waits for the paused one
    assert database.is_unavailable(ended.value)
    assert _effects(app) == [1, 2, 3]


def test_a_handler_that_fails_leaves_nothing(db: ContractDatabase) -> None:
    """The inbox moves with its writes or not at all."""
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    ((_, events),) = stream.poll(own, member, [lease])
    entered = inbox.transaction(app, Delivered(lease, events))
    with pytest.raises(LookupError), entered as (connection, fresh):
        _write(connection, fresh)
        raise LookupError
    assert _effects(app) == []
    _work(app, own, member, lease)
    assert _effects(app) == [1, 2, 3]


def test_what_may_be_done_again(db: ContractDatabase) -> None:
    """Not by a seek alone; when the inbox forgot it; of another source; in another history."""
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    ((_, events),) = stream.poll(own, member, [lease])
    batch = Delivered(lease, events)
    with inbox.transaction(app, batch) as (_, fresh):
        assert fresh == events
    with inbox.transaction(app, batch) as (_, fresh):
        assert fresh == []
    with inbox.transaction(app, batch, source="the other log") as (_, fresh):
        assert fresh == events
    inbox.forget(app, SUBSCRIPTION)
    with inbox.transaction(app, batch) as (_, fresh):
        assert fresh == events
    with pytest.raises(InvalidArgument, match="in parallel"):
        inbox.fresh(app, Delivered(lease, events, in_order=False))


def _redriven_twice(db: ContractDatabase) -> list[int]:
    """A letter from before the position: handled, its consumer dies, handed out again."""
    own, app = db.connect(), _app(db)
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "bad", attempts=1)
    _work(app, own, member, replace(lease, position=1))
    dead_letters.redrive(own, SUBSCRIPTION)
    for is_second in (False, True):
        (letter,) = dead_letters.poll_redriven(own, member, [lease])
        batch = Delivered(lease, [letter.event], in_order=False, letter_id=letter.letter_id)
        with inbox.transaction(app, batch) as (connection, fresh):
            _write(connection, fresh)
        if is_second:
            dead_letters.finish_redriven(own, member, letter)
    return _effects(app)


@proves("D6 in another database")
def test_a_redriven_letter_takes_effect_once(db: ContractDatabase) -> None:
    """Guard: a letter has a row of its own; the stream is past it long ago."""
    assert _redriven_twice(db) == [1, 2, 3]


@proves("D6 in another database", guard="a row for each letter")
def test_by_the_row_of_the_stream_it_would_be_lost(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: letters ask the row of the partition."""
    real = database.call

    def of_the_stream(connection: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
        binds |= {"letter_id": 0} if name.endswith("_inbox") and "letter_id" in binds else {}
        return real(connection, name, **binds)

    monkeypatch.setattr(database, "call", of_the_stream)
    assert _redriven_twice(db) == [2, 3]


def test_a_consumer_with_an_inbox(db: ContractDatabase) -> None:
    """The way it is used; the session keeps its own limit."""
    own, app = db.connect(), _app(db)
    filled(own, events=7)

    def handle(batch: Any) -> None:
        with inbox.transaction(app, batch) as (connection, fresh):
            _write(connection, fresh)

    consumer = Consumer(db.url, SUBSCRIPTION, batch_handler=handle, batch_size=3)
    assert consumer.run_until_idle() == 7
    assert _effects(app) == list(range(1, 8))
    name = "idle_in_transaction_session_timeout"
    shown = {
        "postgres": f"SELECT current_setting('{name}')",
        "mysql": "SELECT @@SESSION.wait_timeout",
        "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
    }
    assert database.execute(app, shown[db.engine]) == db.run(shown[db.engine])
