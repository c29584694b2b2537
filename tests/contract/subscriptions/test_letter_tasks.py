"""Tasks for dead letters: all that match are redriven or dropped, by the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import database, log
from penstock.database import sessions
from penstock.errors import InUse, InvalidArgument, SubscriptionNotFound
from penstock.subscriptions import dead_letters, letter_tasks, queue, stream
from penstock.subscriptions.letter_tasks import LetterFilter
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.reads import counted
from tests.kit.proof import proves

QUEUE, TOPIC = "mails", "shop/mails"
ALL = LetterFilter()


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Any]:
    with closing(db.connect()) as connection:
        penstock.create_topic(connection, TOPIC, create_namespaces=True)
        queue.subscribe(connection, QUEUE, [TOPIC])
        queue.configure(connection, QUEUE, max_failures=1)
        yield connection


def bury(own: Any, count: int, reason: str = "no address") -> None:
    """Make so many more dead letters; each second one has the key b."""
    for number in range(count):
        penstock.publish(own, TOPIC, b"x", key="ab"[number % 2], type="mail")
    log.sequence(own)
    while taken := queue.receive(own, QUEUE, 100):
        queue.reject(own, QUEUE, [each.receipt for each in taken], reason=reason)


def states(own: Any) -> dict[str, int]:
    """How many letters there are in each state."""
    (found,) = dead_letters.counts(own, QUEUE)
    return {"dead": found.dead, "redriven": found.redriven}


def own_transaction(own: Any) -> Any:
    return sessions.of_connection(own).transaction(own)


def left(own: Any) -> int:
    return len(dead_letters.dead_letters(own, QUEUE))


def test_a_sweep_does_what_matches_and_no_more(own: Any) -> None:
    bury(own, 4)
    bury(own, 2, "the bank is CLOSED")
    wanted = LetterFilter(reason="closed", key="b", topic=TOPIC, type="mail", state="dead")
    task_id = letter_tasks.request(own, QUEUE, "drop", wanted, "tried enough (Ada)")
    (before,) = letter_tasks.tasks(own, only_open=True)
    assert (before.id, before.looked, before.ended_at) == (task_id, 0, None)
    assert LetterFilter.from_text(before.filter) == wanted
    assert sweep(own).task_letters == 1
    (task,) = letter_tasks.tasks(own, QUEUE)
    assert (task.looked, task.changed, task.problem) == (6, 1, None)
    assert task.ended_at is not None and task.reason == "tried enough (Ada)"
    assert left(own) == 5
    assert letter_tasks.tasks(own, only_open=True) == [] and sweep(own).task_letters == 0


@proves("a task for dead letters")
def test_it_goes_on_bit_by_bit_and_leaves_what_dies_later(own: Any) -> None:
    bury(own, 5)
    letter_tasks.request(own, QUEUE, "drop", ALL, "why")
    assert letter_tasks.work(own, 2) == 2
    (task,) = letter_tasks.tasks(own)
    assert (task.looked, task.changed, task.ended_at) == (2, 2, None)
    bury(own, 3)
    assert [letter_tasks.work(own, 2) for _ in range(3)] == [2, 1, 0]
    assert left(own) == 3


def test_redriven_letters_are_delivered_again_once(own: Any) -> None:
    bury(own, 3)
    letter_tasks.request(own, QUEUE, "redrive", LetterFilter(key="a"), "why")
    assert sweep(own).task_letters == 2
    taken = queue.receive(own, QUEUE, 10, wait_seconds=5)
    assert [each.event.key for each in taken] == ["a", "a"]
    queue.reject(own, QUEUE, [each.receipt for each in taken], reason="again")
    assert sweep(own).task_letters == 0 and left(own) == 3


@proves("a task for dead letters", guard="the place where it stands")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_two_sweeps_do_a_bit_once(
    own: Any, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Guard: a task that stands elsewhere by now.  Without it the bit is counted twice."""
    bury(own, 2)
    letter_tasks.request(own, QUEUE, "redrive", ALL, "why")
    (seen,) = letter_tasks.tasks(own, only_open=True)
    assert letter_tasks.work(own, 1) == 1
    monkeypatch.setattr(letter_tasks, "tasks", lambda *_, **__: [seen])
    if not is_guarded:
        note = letter_tasks._note

        def unguarded(*given: Any, **more: Any) -> bool:
            return note(*given, **(more | {"stood_below": None}))

        monkeypatch.setattr(letter_tasks, "_note", unguarded)
    letter_tasks.work(own, 1)
    monkeypatch.undo()
    (task,) = letter_tasks.tasks(own)
    assert task.looked == (1 if is_guarded else 2)


def test_a_task_can_be_cancelled_and_goes_with_its_subscription(own: Any) -> None:
    bury(own, 2)
    task_id = letter_tasks.request(own, QUEUE, "drop", ALL, "why")
    assert letter_tasks.cancel(own, task_id, "cancelled by Ada")
    assert not letter_tasks.cancel(own, task_id, "cancelled by Bob")
    assert sweep(own).task_letters == 0 and left(own) == 2
    assert letter_tasks.tasks(own)[0].problem == "cancelled by Ada"
    letter_tasks.request(own, QUEUE, "drop", ALL, "why")
    stream.unsubscribe(own, QUEUE)
    queue.subscribe(own, QUEUE, [TOPIC])
    assert letter_tasks.tasks(own) == []


def test_what_is_no_task_is_refused(own: Any, db: ContractDatabase) -> None:
    for action, filter_, reason in (
        ("purge", "{}", "x"), ("drop", "{}", " "), ("drop", None, "x"), ("drop", "{}", None),
        (None, "{}", "x"), ("drop", "{}", "x" * 1_001),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            database.call(
                own,
                "request_letter_task",
                subscription=QUEUE,
                action=action,
                filter=filter_,
                reason=reason,
            )
    with pytest.raises(InvalidArgument):
        letter_tasks.request(own, QUEUE, "purge", ALL, "why")
    with pytest.raises(InvalidArgument):
        LetterFilter(state="alive")
    with pytest.raises(SubscriptionNotFound):
        letter_tasks.request(own, "nobody", "drop", ALL, "why")
    for _ in range(100):
        letter_tasks.request(own, QUEUE, "drop", ALL, "why")
    with pytest.raises(InUse):
        letter_tasks.request(own, QUEUE, "drop", ALL, "why")


def test_a_filter_that_nobody_can_read_ends_its_task(own: Any) -> None:
    bury(own, 1)
    for text in ("[]", '{"colour": "red"}', '{"since": "soon"}'):
        binds = {"action": "drop", "filter": text, "reason": "x"}
        database.call(own, "request_letter_task", subscription=QUEUE, **binds)
        assert sweep(own).task_letters == 0
        task = letter_tasks.tasks(own)[0]
        assert task.ended_at is not None and "no filter" in str(task.problem)
    assert left(own) == 1


def test_letters_are_chosen_by_when_they_died(own: Any) -> None:
    bury(own, 1)
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    now, hour = datetime.now(UTC), timedelta(hours=1)
    for wanted, matches in (
        (LetterFilter(since=now - hour, until=now + hour), True),
        (LetterFilter(since=letter.died_at, until=letter.died_at), False),
        (LetterFilter(since=now + hour), False),
        (LetterFilter(until=now - hour), False),
    ):
        assert LetterFilter.from_text(wanted.to_text()) == wanted
        assert wanted.matches(letter) is matches


def test_looks_are_recorded_with_who_and_what(own: Any) -> None:
    database.call(own, "record_look", person="Ada", subject="dead letter 1 of mails")
    database.call(own, "record_look", person="Bob", subject="dead letter 2 of mails")
    rows = database.call(own, "list_looks", max_rows=1)
    assert [row[2:] for row in rows] == [("Bob", "dead letter 2 of mails")]
    for person, subject in (("", "x"), ("x", ""), (None, "x"), ("x" * 201, "x")):
        with pytest.raises(InvalidArgument):
            database.call(own, "record_look", person=person, subject=subject)


@proves("a task for dead letters")
def test_a_look_at_few_letters_reads_few_rows(own: Any) -> None:
    """Guard: the index of a subscription's letters, whatever the filter is."""
    bury(own, 300)
    before = dead_letters.dead_letters(own, QUEUE, 1)[0].id - 50
    with own_transaction(own), counted(own) as reads:
        found = [*letter_tasks.matching(own, QUEUE, LetterFilter(key="none"), 10, before)]
    assert len(found) == 10 and not any(matches for _, matches in found)
    assert reads.rows < 150, reads
