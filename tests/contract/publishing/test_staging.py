"""Staged events: one transaction publishes them, exactly once, by the rules of publish_batch."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.database import execute
from penstock.errors import (
    BackPressure,
    InvalidArgument,
    PayloadTooLarge,
    TopicNotFound,
    WriteDiffers,
    WriteLost,
)
from penstock.publishing.staging import Stage, discard, publish_staged, stage
from penstock.records import Message
from penstock.upkeep.sweeping import SweepResult, sweep
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.tenants import OURS, as_login, tenant, tenants_of, three_topics
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves


def _messages(first: int, events: int) -> list[Message]:
    return [Message(TOPIC, b"%d" % n, key=f"k{n}") for n in range(first, first + events)]


def _published(db: ContractDatabase, version: int, *stages: Stage, writer: str = "w") -> int | None:
    with closing(db.connect(autocommit=False)) as own:
        events = publish_staged(own, writer, version, stages)
        own.commit()
    return events


def _log(db: ContractDatabase) -> list[str]:
    with closing(db.connect()) as own:
        drain(own)
        return texts(own)


def test_stages_are_published_in_order_and_once(db: ContractDatabase) -> None:
    with closing(db.connect()) as own:
        topic(own)
        first = stage(own, _messages(0, 2_500))
        second = stage(own, _messages(2_500, 10))
        again = stage(own, [*_messages(2_500, 10), *_messages(0, 2_500)])
    assert (first.events, count(db, "staged_writes")) == (2_500, 7)
    assert _log(db) == []
    assert _published(db, 7, first, second) == 2_510
    assert _log(db) == [str(n) for n in range(2_510)]
    assert count(db, "staged_writes") == 3
    assert _published(db, 7, again) is None
    assert _log(db) == [str(n) for n in range(2_510)]
    assert count(db, "staged_writes") == 0


_WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
#: Two rows that are not the same, by what differs.
DIFFERENT: dict[str, tuple[Message, Message]] = {
    "payload": (Message(TOPIC, b"a"), Message(TOPIC, b"b")),
    "key": (Message(TOPIC, b"a", key="k"), Message(TOPIC, b"a")),
    "empty key": (Message(TOPIC, b"a", key=""), Message(TOPIC, b"a")),
    "where one ends": (Message(TOPIC, b"ab", key="c"), Message(TOPIC, b"a", key="bc")),
    "type": (Message(TOPIC, b"a", type="t"), Message(TOPIC, b"a", type="u")),
    "headers": (Message(TOPIC, b"a", headers={"n": 1}), Message(TOPIC, b"a", headers={"n": 2})),
    "id": (Message(TOPIC, b"a", event_id=uuid.UUID(int=7)), Message(TOPIC, b"a")),
    "partition": (Message(TOPIC, b"a", partition=0), Message(TOPIC, b"a")),
    "time": (Message(TOPIC, b"a", not_before=_WHEN), Message(TOPIC, b"a")),
}


@proves("a Spark write is exactly once")
def test_other_rows_under_a_version_are_refused(db: ContractDatabase) -> None:
    """They would never be published, and nobody would be told.  Guard: the claim compares."""
    with closing(db.connect()) as own:
        topic(own)
        for difference, (before, after) in DIFFERENT.items():
            first, again, other = (stage(own, [each]) for each in (before, before, after))
            more = stage(own, [before, before])
            assert _published(db, 1, first, writer=difference) == 1
            for given in (other, more):
                with pytest.raises(WriteDiffers, match=r'version 1 of writer ".*was published be'):
                    _published(db, 1, given, writer=difference)
            assert _published(db, 1, again, writer=difference) is None
            assert _published(db, 2, other, writer=difference) == 1
            assert count(db, "staged_writes") == 1  # of what was refused: the writer discards it
            discard(own, [more])


@proves("a Spark write is exactly once", guard="the comparison")
def test_without_the_comparison_other_rows_are_lost_in_silence(db: ContractDatabase) -> None:
    """Mutant."""
    with closing(db.connect()) as own:
        topic(own)
        first, other = stage(own, _messages(0, 10)), stage(own, _messages(10, 7))
    compared = {
        "postgres": ("claim_rows", "IF FOUND THEN", "IF false THEN"),
        "mysql": ("claim_version", "IF before_events IS NOT NULL THEN", "IF FALSE THEN"),
    }
    db.without_guard(*compared["postgres" if db.engine == "postgres" else "mysql"])
    assert (_published(db, 1, first), _published(db, 1, other)) == (10, None)
    assert len(_log(db)) == 10


def test_the_same_rows_in_other_tasks_are_the_same_write(db: ContractDatabase) -> None:
    """What is made here, an id or a trace, is no difference; nor is who writes which row."""
    rows = [replace(each, headers={"a": 1, "b": 2}) for each in _messages(0, 20)]
    turned = [replace(each, headers={"b": 2, "a": 1}) for each in reversed(rows)]
    with closing(db.connect()) as own:
        topic(own)
        whole = [stage(own, rows)]
        parts = [stage(own, turned[:3]), stage(own, []), stage(own, turned[3:])]
    assert _published(db, 1, *whole) == 20
    assert _published(db, 1, *parts) is None


@pytest.mark.mariadb_differs("what calls claim_write there")
def test_a_claim_without_its_rows_is_not_compared(db: ContractDatabase) -> None:
    """Of a program of the version before, on either side."""
    with closing(db.connect()) as own:
        topic(own)
        one, two = stage(own, _messages(0, 1)), stage(own, _messages(1, 2))
    assert _claim_of_an_older_program(db, 1)
    assert _published(db, 1, one) is None
    assert _published(db, 2, two) == 2
    assert not _claim_of_an_older_program(db, 2)


def _claim_of_an_older_program(db: ContractDatabase, version: int) -> bool:
    verb = "SELECT" if db.engine == "postgres" else "CALL"
    with closing(db.connect(autocommit=False)) as own:
        ((found,),) = execute(own, f"{verb} penstock.claim_write('w', {version})")
        own.commit()
    return bool(found)


def test_a_claim_says_its_rows_whole_or_not_at_all(db: ContractDatabase) -> None:
    with closing(db.connect(autocommit=False)) as own:
        for events, digest in ((-1, "x"), (1, None), (None, "x"), (1, "x" * 101)):
            with pytest.raises(InvalidArgument):
                database.call(
                    own, "claim_rows", writer="w", version=1, events=events, digest=digest
                )
            own.rollback()


def test_nothing_is_claimed_or_published_by_a_transaction_that_is_rolled_back(
    db: ContractDatabase,
) -> None:
    with closing(db.connect()) as own:
        topic(own)
        only = stage(own, _messages(0, 10))
    with closing(db.connect(autocommit=False)) as own:
        assert publish_staged(own, "w", 1, [only]) == 10
        own.rollback()
    assert _log(db) == []
    assert _published(db, 1, only) == 10
    assert len(_log(db)) == 10


@proves("a Spark write is exactly once")
def test_a_second_claim_waits_for_the_first(db: ContractDatabase) -> None:
    """Two drivers after a fail-over.  Guard: the version is unique."""
    with closing(db.connect()) as own:
        topic(own)
        first, second = stage(own, _messages(0, 10)), stage(own, _messages(0, 10))
    other = db.connect(autocommit=False)
    with closing(db.connect(autocommit=False)) as own:
        assert publish_staged(own, "w", 1, [first]) == 10
        found: list[int | None] = []
        waiting = threading.Thread(
            target=lambda: found.append(publish_staged(other, "w", 1, [second]))
        )
        waiting.start()
        db.wait_until_blocked(other)
        own.commit()
    waiting.join()
    other.commit()
    assert found == [None]
    assert len(_log(db)) == 10


@pytest.mark.parametrize("lost", ["a chunk", "the stage"])
def test_a_stage_that_is_not_complete_is_refused(db: ContractDatabase, lost: str) -> None:
    """Guard: publish_staged counts."""
    with closing(db.connect()) as own:
        topic(own)
        only = stage(own, _messages(0, 1_500))
    db.run(f"DELETE FROM penstock.staged_writes {'WHERE chunk = 1' if lost == 'a chunk' else ''}")
    with pytest.raises(WriteLost, match="of 1500 staged events"):
        _published(db, 1, only)
    assert _log(db) == []


@proves("a Spark write is exactly once", guard="the count")
def test_without_the_count_events_are_lost(db: ContractDatabase) -> None:
    """Mutant."""
    with closing(db.connect()) as own:
        topic(own)
        only = stage(own, _messages(0, 1_500))
    db.run("DELETE FROM penstock.staged_writes WHERE chunk = 1")
    counted = {
        "postgres": "total IS DISTINCT FROM events",
        "mysql": "COALESCE(total <> events, TRUE)",
        "mariadb": "COALESCE(total <> events, TRUE)",
    }
    db.without_guard("publish_staged", counted[db.engine], "FALSE")
    _published(db, 1, only)
    assert len(_log(db)) == 1_000


def test_the_rules_of_publish_batch_hold(db: ContractDatabase) -> None:
    """Limits of the payload, the topic, back pressure: nothing is published, nothing claimed."""
    with closing(db.connect()) as own:
        topic(own)
        only = stage(own, _messages(0, 10))
        with pytest.raises(PayloadTooLarge):
            stage(own, [Message(TOPIC, bytes(2 << 20))])
        with pytest.raises(TopicNotFound):
            stage(own, [Message("tests/none", b"")])
        with pytest.raises(InvalidArgument, match="event 1: a stage knows no dedup keys"):
            stage(own, [Message(TOPIC, b""), Message(TOPIC, b"", dedup_key="d")])
    db.run("UPDATE penstock.topics SET max_payload_bytes = 0")
    with pytest.raises(PayloadTooLarge):
        _published(db, 1, only)
    db.run("UPDATE penstock.topics SET max_payload_bytes = 1048576")
    with closing(db.connect()) as own:
        _limit(own, 1)
        with pytest.raises(BackPressure):
            for _ in range(20):
                penstock.publish_batch(own, _messages(100, 5))
                database.call(own, "measure_pressure")
        with pytest.raises(BackPressure):
            _published(db, 1, only)
        _limit(own, None)
    assert _published(db, 1, only) == 10


def _limit(own: Any, events: int | None) -> None:
    database.call(own, "set_backpressure", topic=TOPIC, max_events=events, max_bytes=None)


def test_versions_are_known_for_a_thousand(db: ContractDatabase) -> None:
    """Guard: a version that is too old to be known is refused, not published again."""
    with closing(db.connect(autocommit=False)) as own:
        for version in (0, 5, 1_000, 1_003):
            assert publish_staged(own, "w", version, []) == 0
        own.commit()
        assert publish_staged(own, "w", 5, []) is None
        assert publish_staged(own, "other", 0, []) == 0
        with pytest.raises(WriteLost, match='version 3 of writer "w" is too old'):
            publish_staged(own, "w", 3, [])
        own.rollback()
    assert count(db, "claimed_writes") == 3
    with closing(db.connect(autocommit=False)) as own, pytest.raises(InvalidArgument):
        publish_staged(own, "w", -1, [])


def test_orphans_go_by_age(db: ContractDatabase) -> None:
    with closing(db.connect()) as own:
        topic(own)
        stage(own, _messages(0, 1_500))
        assert sweep(own) == SweepResult(0, 0, 0, 0, 0, 0)
        db.run("UPDATE penstock.staged_writes SET staged_at = '2026-01-01' WHERE chunk = 0")
        assert sweep(own) == SweepResult(0, 0, 0, 0, 1, 0)
        with pytest.raises(InvalidArgument):
            database.call(own, "sweep_staged", max_age_seconds=-1.0, max_rows=1)
    assert count(db, "staged_writes") == 1


def test_a_chunk_has_a_number_and_events(db: ContractDatabase) -> None:
    with closing(db.connect()) as own:
        topic(own)
        with pytest.raises(InvalidArgument):
            _stage_in_sql(db, own, -1)


def _stage_in_sql(db: ContractDatabase, own: Any, chunk: int) -> None:
    binds = {"stage": str(uuid.uuid4()), "chunk": chunk}
    if db.engine == "postgres":
        execute(
            own,
            "SELECT penstock.stage_events(%(stage)s::uuid, %(chunk)s::integer,"
            " ARRAY['tests/log'], ARRAY['x']::bytea[], NULL, NULL, NULL, NULL, NULL, NULL)",
            binds,
        )
    else:
        own.begin()
        execute(own, "CALL penstock.stage_events(%(stage)s, %(chunk)s, '[{}]')", binds)


@proves("a Spark write is exactly once", guard="the claim")
def test_without_the_claim_a_repeated_write_is_doubled(db: ContractDatabase) -> None:
    """Mutant."""
    with closing(db.connect()) as own:
        topic(own)
        first, again = stage(own, _messages(0, 10)), stage(own, _messages(0, 10))
    claimed = {
        "postgres": ("claim_rows", "IF NOT FOUND THEN", "IF false THEN"),
        "mysql": ("claim_version", "FOR 1062 SET is_new = FALSE", "FOR 1062 SET is_new = TRUE"),
    }
    db.without_guard(*claimed["postgres" if db.engine == "postgres" else "mysql"])
    assert (_published(db, 1, first), _published(db, 1, again)) == (10, 10)
    assert len(_log(db)) == 20


@proves("a Spark write is exactly once")
def test_a_tenant_meets_no_write_of_another(db: ContractDatabase) -> None:
    """D11: neither the stage nor the version of another login is there for it."""
    with tenants_of(db) as tenants:
        three_topics(tenants)
        with as_login(tenants, tenant(tenants, "ours")) as own:
            ours = stage(own, [Message(OURS, b"x")])
            with as_login(tenants, tenant(tenants, "theirs")) as spy:
                with pytest.raises(WriteLost, match="of 1 staged events 0 are there"):
                    _in_transaction(spy, ours)
                discarded = database.call(spy, "discard_staged", stages=[str(ours.id)])
                assert discarded == [(0,)]
                assert _in_transaction(spy, Stage(ours.id, 0)) == 0  # takes its own "w", 1
                hidden = stage(spy, [Message(OURS, b"x")])  # known to this process
                with pytest.raises(TopicNotFound):
                    _in_transaction(spy, hidden, version=2)
            assert _in_transaction(own, ours) == 1


def _in_transaction(own: Any, given: Stage, version: int = 1) -> int | None:
    begin = "BEGIN" if database.dialect_of(own) == "postgres" else "START TRANSACTION"
    execute(own, begin)
    try:
        found = publish_staged(own, "w", version, [given])
    except BaseException:
        execute(own, "ROLLBACK")
        raise
    execute(own, "COMMIT")
    return found
