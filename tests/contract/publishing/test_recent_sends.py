"""Claims of sends for some minutes: a send that is repeated is no second event."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

import penstock
from penstock import database
from penstock.database import sessions
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.publishing import recent_sends
from penstock.publishing.event_ids import uuid7
from penstock.publishing.recent_sends import Send
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.log.test_held import _snapshot as snapshot, _work as work
from tests.kit.proof import proves

logger = logging.getLogger(__name__)

TOPIC, OTHER = "shop/orders", "shop/other"
_OVER = {
    "postgres": "UPDATE penstock.recent_sends SET ends_at = now() - interval '1 s'"
    " WHERE send_key {}",
    "mysql": "UPDATE penstock.recent_sends SET ends_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"
    " WHERE send_key {}",
}
#: What keeps a claim that is not over, and what the mutant has in its place.
_GUARDS = {
    "postgres": ("claim_sends", "WHERE r.ends_at <= clock_timestamp()", "WHERE true"),
    "mysql": ("take_send", "IF known_end <= UTC_TIMESTAMP(6) THEN", "IF TRUE THEN"),
}


def dialect(db: ContractDatabase) -> str:
    return "postgres" if db.engine == "postgres" else "mysql"


@pytest.fixture
def own(db: ContractDatabase) -> Any:
    connection = db.connect()
    for topic in (TOPIC, OTHER):
        penstock.create_topic(connection, topic, create_namespaces=True, if_not_exists=True)
    return connection


def claim(own: Any, *keys: str, topic: str = TOPIC) -> list[UUID | None]:
    return recent_sends.claim(own, [Send(topic, key, uuid7()) for key in keys], 300)


def over(db: ContractDatabase, keys: str) -> None:
    """Let claims be over."""
    db.run(_OVER[dialect(db)].format(keys))


def count(db: ContractDatabase) -> int:
    return int(db.run("SELECT count(*) FROM penstock.recent_sends")[0][0])


def test_a_text_is_claimed_once_in_its_topic_until_its_end(db: ContractDatabase, own: Any) -> None:
    first, second = uuid7(), uuid7()
    given = [Send(TOPIC, "b", first), Send(TOPIC, "a", second), Send(TOPIC, "b", uuid7())]
    assert recent_sends.claim(own, given, 300) == [None, None, first]
    assert claim(own, "c", "a", "b") == [None, second, first]
    assert claim(own, "a", topic=OTHER) == [None]
    over(db, "= 'a'")
    third = uuid7()
    assert recent_sends.claim(own, [Send(TOPIC, "a", third)], 300) == [None]
    assert claim(own, "a", "b") == [third, first]  # in place, and for as long again


@proves("a FIFO queue of SQS", guard="the claim")
@proves("a resend of SQS", guard="the claim, and its end")
def test_without_the_end_every_claim_is_free(db: ContractDatabase, own: Any) -> None:
    """Mutant: the claim is overwritten though it is not over."""
    db.without_guard(*_GUARDS[dialect(db)])
    assert claim(own, "a") == claim(own, "a") == [None]


def test_a_claim_is_gone_with_its_transaction(db: ContractDatabase, own: Any) -> None:
    with closing(db.connect(autocommit=False)) as other:
        assert claim(other, "a") == [None]
        other.rollback()
    assert claim(own, "a") == [None]


@proves("a resend of SQS")
@pytest.mark.parametrize("is_kept", [True, False], ids=["committed", "rolled back"])
def test_a_second_claim_waits_for_the_first_ones_transaction(
    db: ContractDatabase, own: Any, is_kept: bool
) -> None:
    """Two resends at once: the second learns what the first has done, and never before."""
    if db.engine == "postgres":  # so that a slow machine has time for the script
        db.without_guard("claim_sends", "'100ms'", "'20s'")
    else:
        db.without_guard("lock_sends", "_timeout = 1;", "_timeout = 20;")
    first = uuid7()
    found: list[Any] = []
    with closing(db.connect(autocommit=False)) as open_one:
        recent_sends.claim(open_one, [Send(TOPIC, "a", first)], 300)
        thread = threading.Thread(target=lambda: found.append(claim(own, "a")))
        thread.start()
        db.wait_until_blocked(own)
        assert found == []
        open_one.commit() if is_kept else open_one.rollback()
        thread.join()
    assert found == [[first if is_kept else None]]


def test_a_claim_waits_for_a_moment_only(db: ContractDatabase, own: Any) -> None:
    """Guard: lock_timeout of claim_sends; its session waits for half a minute else."""
    with closing(db.connect(autocommit=False)) as open_one:
        claim(open_one, "a")
        with pytest.raises(Exception) as caught:
            claim(own, "a", "b")
        assert database.is_contention(caught.value)
        open_one.rollback()
    assert claim(own, "a", "b") == [None, None]


def test_claims_that_are_over_are_deleted_slice_by_slice(db: ContractDatabase, own: Any) -> None:
    claim(own, *(f"old{n}" for n in range(5)), *(f"new{n}" for n in range(3)))
    over(db, "LIKE 'old%'")
    with sessions.of_connection(own).transaction(own):  # then it does one slice only
        assert sweep(own, 3).forgotten_sends == 3
    assert count(db) == 5
    assert sweep(own, 3).forgotten_sends == 2
    assert (sweep(own, 3).forgotten_sends, count(db)) == (0, 3)
    # What ends before the place that was reached waits for the next round.
    over(db, "= 'new0'")
    db.run(f"UPDATE penstock.forgotten_sends SET up_to = {_LATER[dialect(db)]}")
    assert sweep(own).forgotten_sends == 0
    db.run(f"UPDATE penstock.forgotten_sends SET begun_at = {_LONG_AGO[dialect(db)]}")
    assert sweep(own).forgotten_sends == 1


_LATER = {"postgres": "now()", "mysql": "UTC_TIMESTAMP(6)"}
_LONG_AGO = {
    "postgres": "now() - interval '2 hours'",
    "mysql": "UTC_TIMESTAMP(6) - INTERVAL 2 HOUR",
}


def test_what_is_wrong_is_refused(own: Any) -> None:
    for key in ("", "x" * 65, "a b", "ä"):
        with pytest.raises(InvalidArgument):
            claim(own, key)
    with pytest.raises(InvalidArgument):
        recent_sends.claim(own, [Send(TOPIC, "a", uuid7())], 0)
    with pytest.raises(InvalidArgument):
        claim(own, *map(str, range(1_001)))
    with pytest.raises(TopicNotFound):
        claim(own, "a", topic="shop/none")
    assert claim(own) == []


@pytest.mark.long
@pytest.mark.parametrize("is_mutant", [False, True], ids=["", "mutant"])
def test_under_a_held_snapshot_a_claim_costs_the_same(
    db: ContractDatabase, own: Any, is_mutant: bool
) -> None:
    """Guard: up_to.  Claims of a second, for a minute: pages are counted, never timed."""
    if is_mutant:
        if db.engine != "postgres":
            pytest.skip("InnoDB steps over what it has deleted in fewer pages: 1.46 in a minute")
        db.without_guard("forget_sends", "r.ends_at >= forgotten.up_to", "r.ends_at >= '-infinity'")
    apart = db.connect(autocommit=False)
    pages: list[tuple[int, int]] = []
    ends: list[float] = []
    removed = 0

    def forget() -> None:
        nonlocal removed
        removed += int(database.call(apart, "forget_sends", max_rows=10_000)[0][0])

    with snapshot(db):
        begun = time.monotonic()
        while time.monotonic() < begun + 60:
            sends = [Send(TOPIC, uuid7().hex, uuid7()) for _ in range(200)]
            claimed = work(apart, lambda sends=sends: recent_sends.claim(apart, sends, 1))  # type: ignore[misc]
            pages.append((claimed[0], work(apart, forget)[0]))
            ends.append(time.monotonic())
    tenth = len(pages) // 10
    first, last = pages[tenth : 2 * tenth], pages[-tenth:]
    assert removed > 100 * len(pages)
    if db.engine == "mariadb":
        # It counts no pages here: 1,600 beats in a minute, as many in its second half.
        half = sum(each < begun + 30 for each in ends)
        logger.info("%s beats, %s of them in the first half", len(ends), half)
        assert half < 2 * (len(ends) - half)
        return
    grown = [
        sum(each[place] for each in last) / sum(each[place] for each in first) for place in (0, 1)
    ]
    logger.info("%s: %s, grown %s", len(pages), (first[0], last[0]), grown)
    assert grown[0] <= 1.5
    assert (grown[1] > 1.5) == is_mutant
