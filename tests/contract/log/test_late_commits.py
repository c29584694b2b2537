"""S2: a late commit is not skipped and does not hold others back, on every engine."""

from __future__ import annotations

import pytest

from penstock import log
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction, sql
from tests.kit.log import drain, put, read, texts, topic
from tests.kit.proof import proves

#: Sequencers as most outboxes have them: everything above the highest id that was seen.
BY_HIGHEST_ID = {
    "postgres": [
        (
            "append_few",
            "e.tx < pg_snapshot_xmax(append_few.target)",
            "e.id > append_few.after_id",
        ),
        (
            "fresh_events",
            "e.tx >= pg_snapshot_xmax(fresh_events.base)",
            "e.id > (SELECT COALESCE(max(c.last_id), 0) FROM chunks AS c)",
        ),
        (
            "fresh_events",
            "WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)",
            "WHERE false",
        ),
    ],
    "mysql": [
        (
            "claim_blocks",
            "WHERE p.block > bottom",
            "WHERE p.block > GREATEST(bottom, (SELECT s.settled_block FROM sequencer AS s))",
        )
    ],
}


def _late_commit(db: ContractDatabase) -> tuple[list[str], list[str]]:
    """What can be read before and after a transaction commits that published first."""
    own = db.connect()
    with open_transaction(db) as late:
        put(late, "late")
        put(own, "quick 1")
        drain(own)
        put(own, "quick 2")
        drain(own)
        before = texts(own)
        late.commit()
        drain(own)
        return before, texts(own)


@proves("S2")
def test_a_late_commit_comes_with_the_next_pass(db: ContractDatabase) -> None:
    """Guard: a pass looks at what has become visible, not at an id range."""
    topic(db.connect())
    before, after = _late_commit(db)
    assert before == ["quick 1", "quick 2"]  # held back by nobody
    assert after == ["quick 1", "quick 2", "late"]


@proves("S2", guard="what became visible, not a range of ids")
def test_without_it_the_late_commit_is_lost(db: ContractDatabase) -> None:
    """Mutant: only what lies above the highest id seen."""
    topic(db.connect())
    for mutant in BY_HIGHEST_ID["postgres" if db.engine == "postgres" else "mysql"]:
        db.without_guard(*mutant)
    _, after = _late_commit(db)
    assert after == ["quick 1", "quick 2"]


@proves("F10")
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_late_commit_inside_a_backlog(db: ContractDatabase, size: int) -> None:
    """Guard: passes over a backlog do not begin above what came late."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as late:
        put(late, "late")
        for number in range(3):
            put(own, f"before {number}")
            drain(own)
        for number in range(30):
            put(own, str(number))
        late.commit()
    drain(own, size)
    found = texts(own)
    assert [text for text in found if text.isdigit()] == list(map(str, range(30)))
    assert found.count("late") == 1


def test_a_rolled_back_transaction_leaves_no_hole(db: ContractDatabase) -> None:
    """Guard: sequences are given to what is visible, not to ids."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as undone:
        put(undone, "undone")
        put(own, "1")
        drain(own)
        undone.rollback()
    put(own, "2")
    drain(own)
    assert [(event.sequence, event.payload) for event in read(own)] == [(1, b"1"), (2, b"2")]


def test_a_savepoint_comes_with_its_transaction(db: ContractDatabase) -> None:
    """Guard: what is visible is the whole transaction or nothing of it."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as outer:
        sql(outer, "SAVEPOINT a")
        put(outer, "in savepoint")
        sql(outer, "RELEASE SAVEPOINT a")
        put(own, "other")
        assert drain(own) == 1
        sql(outer, "SAVEPOINT b")
        put(outer, "in another")
        outer.commit()
    assert drain(own) == 2
    assert texts(own) == ["other", "in savepoint", "in another"]


def test_the_sequencers_own_transaction_may_publish_after_it(db: ContractDatabase) -> None:
    """Guard: what a transaction publishes after its own pass comes with a later one."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as mixed:
        log.sequence(mixed)
        put(own, "other")
        put(mixed, "mine")
        mixed.commit()
    drain(own)
    assert sorted(texts(own)) == ["mine", "other"]


@proves("F10")
def test_many_open_transactions_and_each_comes_once(db: ContractDatabase) -> None:
    """Guards: the same, with commits and rollbacks in an order of their own."""
    own = db.connect()
    topic(own)
    opened = [db.connect(autocommit=False) for _ in range(30)]
    for number, each in enumerate(opened):
        put(each, str(number))
    put(own, "between")
    drain(own)
    for number, each in enumerate(opened[::-1]):
        if number % 3:
            each.commit()
        else:
            each.rollback()
        if number % 7 == 0:
            drain(own)
    drain(own)
    kept = {str(29 - number) for number in range(30) if number % 3}
    assert sorted(texts(own)) == sorted(kept | {"between"})
