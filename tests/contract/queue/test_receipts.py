"""What a receipt is good for, how long, and who learns what from one that is not."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import database, log
from penstock.errors import InvalidArgument, MalformedReceipt, StaleReceipt
from penstock.subscriptions import dead_letters, queue
from penstock.subscriptions.queue import Receipt
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    count,
    filled,
    mutated,
    pass_time,
    pass_time_of,
    receipts,
    receive,
    rows,
    texts,
)

CALLS: list[Callable[[Connection, list[Receipt]], Any]] = [
    lambda own, given: queue.acknowledge(own, QUEUE, given),
    lambda own, given: queue.extend(own, QUEUE, given, 30),
    lambda own, given: queue.reject(own, QUEUE, given),
    lambda own, given: queue.release(own, QUEUE, given),
]


@proves("a receipt is good or it is not")
def test_a_receipt_works_once(own: Connection) -> None:
    """C-T7: after a call has used it, none takes it."""
    filled(own, 20)
    for use in CALLS:
        (held,) = receive(own, visibility_seconds=1000)
        use(own, [held.receipt])
        for again in CALLS:
            with pytest.raises(StaleReceipt):
                again(own, [held.receipt])


@proves("a receipt is good or it is not")
def test_a_late_receipt_is_good_until_the_next_hand_out(own: Connection) -> None:
    """C-F6: its time is over and it was swept, but nobody else has the event."""
    filled(own, 3)
    late = receive(own, 3, visibility_seconds=10)
    pass_time(own, 20)
    (again,) = receive(own, visibility_seconds=1000)
    assert texts([again]) == ["1"]
    with pytest.raises(StaleReceipt):
        acknowledge(own, late[:1])
    acknowledge(own, late[1:])
    assert receive(own, 3) == []
    acknowledge(own, [again])


@proves("a receipt is good or it is not")
def test_no_other_receipt_is_good(own: Connection) -> None:
    """Forged, of another queue, of another event: one error, in the same words."""
    filled(own, 2)
    queue.subscribe(own, "other", [TOPIC])
    (foreign,) = queue.receive(own, "other")
    (held,) = receive(own)
    wrong = [
        held.receipt._replace(token=uuid.uuid4()),
        held.receipt._replace(claim=held.receipt.claim + 1000),
        held.receipt._replace(sequence=2),
        foreign.receipt,
    ]
    for use in CALLS:
        words = set()
        for each in wrong:
            with pytest.raises(StaleReceipt) as caught:
                use(own, [each])
            words.add(str(caught.value))
        assert len(words) == 1
    acknowledge(own, [held])


def test_malformed_receipts_are_refused(own: Connection) -> None:
    filled(own, 1)
    (held,) = receive(own)
    assert Receipt.parse(str(held.receipt)) == held.receipt
    good = str(held.receipt)
    for text in ("", "x", good + "0", good.upper() + ".", " " + good, "1.2", "-1" + good[1:]):
        with pytest.raises(MalformedReceipt):
            Receipt.parse(text)
    for use in CALLS:
        with pytest.raises(MalformedReceipt):
            use(own, [held.receipt, held.receipt])
        with pytest.raises(MalformedReceipt):
            use(own, [held.receipt._replace(sequence=-1)])
        with pytest.raises(MalformedReceipt):
            use(own, [str(held.receipt)])  # type: ignore[list-item]
    with pytest.raises(MalformedReceipt):
        database.call(
            own, "acknowledge", subscription=QUEUE, claims=[1], first_sequences=None,
            last_sequences=[1], tokens=[None], partly=False,
        )  # fmt: skip
    for first, last in ((-(2**63), 2**63 - 1), (0, 1), (2, 1), (1, 1001)):
        with pytest.raises(MalformedReceipt):
            database.call(
                own, "acknowledge", subscription=QUEUE, claims=[held.receipt.claim],
                first_sequences=[first], last_sequences=[last], tokens=[held.receipt.token],
                partly=True,
            )  # fmt: skip
    acknowledge(own, [held])


#: In the place of an array of one receipt.
BAD_JSON = ['{"a": 1}', '["abc"]', "[[1]]", "[null]", f'["{"f" * 90}"]']


@pytest.mark.parametrize("db", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("bad", BAD_JSON)
def test_malformed_arrays_are_refused(db: ContractDatabase, own: Connection, bad: str) -> None:
    """From any client, also where one receipt would be the plain case.  Guard: its types."""
    filled(own, 1)
    (held,) = receive(own)
    good = [[held.receipt.claim], [1], [1], [str(held.receipt.token)]]
    for place in range(4):
        given = [bad if number == place else json.dumps(each) for number, each in enumerate(good)]
        with closing(db.connect(autocommit=False)) as mine:
            mine.begin()  # type: ignore[attr-defined]
            with pytest.raises((MalformedReceipt, StaleReceipt)):
                database.execute(
                    mine,
                    "CALL penstock.acknowledge('mails', %(claims)s, %(firsts)s, %(lasts)s,"
                    " %(tokens)s, false)",
                    dict(zip(("claims", "firsts", "lasts", "tokens"), given, strict=True)),
                )
    acknowledge(own, [held])


def test_parts_of_batches_are_finished_in_any_order(own: Connection) -> None:
    """C-T7: single events out of several batches, in one call; what is left comes back."""
    filled(own, 30)
    batches = [receive(own, 10, visibility_seconds=100) for _ in range(3)]
    chance = random.Random(7)
    chosen = chance.sample([each for batch in batches for each in batch], 17)
    assert queue.acknowledge(own, QUEUE, receipts(chosen)) == [True] * 17
    with pytest.raises(StaleReceipt):
        acknowledge(own, chosen[:1])
    pass_time(own, 200)
    left: list[str] = []
    while found := receive(own, 50):
        left += texts(found)
    assert sorted(left + texts(chosen)) == sorted(str(number) for number in range(1, 31))


@proves("a receipt is good or it is not")
def test_one_bad_receipt_refuses_all_or_itself(own: Connection) -> None:
    filled(own, 5)
    held = receive(own, 5)
    given = receipts(held)
    given[2] = given[2]._replace(token=uuid.uuid4())
    with pytest.raises(StaleReceipt):
        queue.acknowledge(own, QUEUE, given)
    assert queue.statistics(own, QUEUE).in_flight == 5
    expected = [True, True, False, True, True]
    assert queue.acknowledge(own, QUEUE, given, partly=True) == expected
    assert queue.statistics(own, QUEUE).in_flight == 1


def test_receipts_of_several_claims_end_whole_and_in_part(own: Connection) -> None:
    """In any order; of each claim all events, some or none."""
    filled(own, 12)
    batches = [receive(own, 4, visibility_seconds=100) for _ in range(3)]
    foreign = batches[2][1].receipt._replace(claim=batches[0][0].receipt.claim)
    mixed = [batches[2][0].receipt, foreign, *receipts(batches[2][2:])]
    with pytest.raises(StaleReceipt):
        queue.acknowledge(own, QUEUE, mixed)
    given = receipts(reversed(batches[0])) + receipts(batches[1][1:3])
    assert queue.acknowledge(own, QUEUE, given) == [True] * 6
    pass_time(own, 200)
    left: list[str] = []
    while found := receive(own, 50):
        left += texts(found)
    assert sorted(left, key=int) == ["5", "8", "9", "10", "11", "12"]


def test_extend_hides_longer_and_renews_the_receipt(own: Connection) -> None:
    """C-T5, first half."""
    filled(own, 5)
    held = receive(own, 5, visibility_seconds=30)
    renewed = queue.extend(own, QUEUE, receipts(held[1:3]), 100)
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[1:2])
    pass_time(own, 50)
    assert sorted(texts(receive(own, 5))) == ["1", "4", "5"]
    queue.acknowledge(own, QUEUE, renewed[:1])
    pass_time(own, 60)
    left: list[str] = []
    while found := receive(own, 5):
        left += texts(found)
    assert sorted(left) == ["1", "3", "4", "5"], "2 is finished"


def test_zero_seconds_put_back_with_a_new_body(own: Connection) -> None:
    """C-T5, second half: the delivery counts; the log keeps what was published."""
    filled(own, 1)
    (held,) = receive(own)
    assert queue.extend(own, QUEUE, [held.receipt], 0, body=b"new") == []
    (again,) = receive(own)
    assert (again.event.payload, again.deliveries) == (b"new", 2)
    queue.extend(own, QUEUE, [again.receipt], 0)
    (third,) = receive(own)
    assert (third.event.payload, third.deliveries) == (b"new", 3)
    assert [each.payload for each in log.fetch(own, TOPIC, 0, 1, 10)] == [b"1"]
    assert queue.peek(own, QUEUE)[0].event.payload == b"new"
    with pytest.raises(InvalidArgument):
        queue.extend(own, QUEUE, [third.receipt], -1)
    acknowledge(own, [third])
    assert count(own, "queue_waiting") == 0


def test_a_release_does_not_count(own: Connection) -> None:
    filled(own, 3, max_deliveries=1)
    for _ in range(4):
        held = receive(own, 3)
        assert [each.deliveries for each in held] == [1, 1, 1]
        queue.release(own, QUEUE, receipts(held))
    assert queue.statistics(own, QUEUE).ready == 3


def test_failures_wait_longer_each_time_and_end_in_the_dead_letters(own: Connection) -> None:
    """Backoff 2, 4, 8 s less a share of at most 0.2; then a dead letter with its reason."""
    filled(own, 2, max_failures=4, max_deliveries=10)
    for failures, shortest, longest in ((0, 1.6, 2), (1, 3.2, 4), (2, 6.4, 8)):
        found = [each for each in receive(own, 2) if each.event.payload == b"1"]
        assert found[0].failures == failures
        queue.reject(own, QUEUE, receipts(found), reason="no such address")
        (waiting,) = [each for each in queue.peek(own, QUEUE) if each.state == "delayed"]
        assert waiting.visible_at is not None
        wait = (waiting.visible_at - datetime.now(UTC)).total_seconds()
        assert shortest - 1 < wait <= longest
        pass_time(own, longest)
    (last,) = [each for each in receive(own, 2) if each.event.payload == b"1"]
    queue.reject(own, QUEUE, [last.receipt], reason="no such address")
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert (letter.sequence, letter.reason, letter.attempts) == (1, "no such address", 4)
    assert queue.statistics(own, QUEUE).delayed == 0


def test_redriven_letters_come_in_order_with_new_counts(own: Connection) -> None:
    filled(own, 6, max_failures=1)
    held = receive(own, 6)
    for each in reversed(held[:4]):
        queue.reject(own, QUEUE, [each.receipt])
    assert queue.statistics(own, QUEUE).dead == 4
    assert queue.redrive(own, QUEUE) == 4
    assert dead_letters.dead_letters(own, QUEUE) == []
    found = receive(own, 4)
    assert [(each.event.sequence, each.deliveries, each.failures) for each in found] == [
        (number, 1, 0) for number in range(1, 5)
    ]
    acknowledge(own, found)


@proves("D6 in queues")
def test_acknowledge_is_a_part_of_the_transaction(db: ContractDatabase, own: Connection) -> None:
    """The handler's write and the end of the event are there together, or neither."""
    filled(own, 1)
    database.execute(db.connect(), "CREATE TABLE effects (number INT)")
    (held,) = receive(own, visibility_seconds=100)
    for commits in (False, True):
        with closing(db.connect(autocommit=False)) as other:
            database.execute(other, "INSERT INTO effects VALUES (1)")
            queue.acknowledge(other, QUEUE, [held.receipt])
            # While it is open, nobody gets the event, whatever the clock says.
            pass_time_of(own, "queue_turns", 200)
            assert queue.receive(own, QUEUE) == []
            (other.commit if commits else other.rollback)()
        assert rows(db.connect(), "SELECT count(*) FROM effects") == [(int(commits),)]
    assert receive(own) == []


@proves("D6 in queues")
def test_an_expired_claim_that_is_being_finished_is_left_alone(
    db: ContractDatabase, own: Connection
) -> None:
    """Guard: SKIP LOCKED in end_claims: the sweep neither waits nor hands the event out."""
    filled(own, 1)
    (held,) = receive(own, visibility_seconds=1)
    pass_time(own, 100)
    with closing(db.connect(autocommit=False)) as other:
        queue.acknowledge(other, QUEUE, [held.receipt])
        pass_time_of(own, "queue_turns", 1)
        assert queue.receive(own, QUEUE) == []
        other.commit()
    assert receive(own) == []


#: The limit that ends an idle transaction.
LIMIT = {
    "postgres": "SELECT setting::integer / 1000 FROM pg_settings"
    " WHERE name = 'idle_in_transaction_session_timeout'",
    "mysql": "SELECT @@SESSION.wait_timeout",
    "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
}


@proves("D6 in queues")
def test_a_transaction_with_a_claim_has_a_limit(db: ContractDatabase, own: Connection) -> None:
    """Guard: limit_claim: a paused worker does not keep its events for ever."""
    filled(own, 2)
    (held,) = receive(own, visibility_seconds=100)
    with closing(db.connect(autocommit=False)) as other:
        queue.acknowledge(other, QUEUE, [held.receipt])
        assert 90 <= rows(other, LIMIT[db.engine])[0][0] <= 100
        other.rollback()


@proves("D6 in queues", guard="limit_claim")
def test_without_the_limit_it_has_none(db: ContractDatabase, own: Connection) -> None:
    """Mutant: limit_claim does nothing."""
    mutated(
        db,
        {
            "postgres": (
                "limit_claim",
                [("limit_transaction(GREATEST(", "pg_sleep(0 * GREATEST(")],
            ),
            "mysql": ("limit_claim", [("CALL limit_transaction(", "DO (")]),
        },
    )
    filled(own, 1)
    (held,) = receive(own)
    with closing(db.connect(autocommit=False)) as other:
        before = rows(other, LIMIT[db.engine])
        queue.acknowledge(other, QUEUE, [held.receipt])
        assert rows(other, LIMIT[db.engine]) == before
        other.rollback()


_MINE = "WHERE r.subscription_id = owner_id AND r.id = claim AND r.token = given"
#: Guards of receipts, of each dialect: function, old and new texts.
MUTANTS = {
    "its token, in the plain case": {
        "postgres": ("acknowledge", [("AND r.token = tokens[1]", "")]),
        "mysql": ("finish_plain", [
            (f"{_MINE} AND", _MINE.replace("AND r.token = given", "AND")),
            (f"{_MINE}\n", _MINE.replace("AND r.token = given", "\n"))]),
    },
    "its queue": {
        "postgres": ("acknowledge", [("AND r.subscription_id = s.id", "")]),
        "mysql": ("finish_plain", [
            (f"{_MINE} AND", _MINE.replace("r.subscription_id = owner_id", "true") + " AND"),
            (f"{_MINE}\n", _MINE.replace("r.subscription_id = owner_id", "true") + "\n")]),
    },
    "its bits": {
        "postgres": ("piece_events", [("IF piece.finished IS NULL", "IF true")]),
        "mysql": ("cut_out", [("p.first_sequence - 1 AS ends", "NULL AS ends")]),
    },
    "all or none": {
        "postgres": ("take_out", [("partly IS NOT TRUE AND NOT true = ALL (settled)", "false")]),
        "mysql": ("take_out", [("partly IS NOT TRUE AND INSTR(settled, 'false') > 0", "FALSE")]),
    },
}  # fmt: skip


@proves("a receipt is good or it is not", guard="token, queue, bits, all or none")
@pytest.mark.parametrize("guard", MUTANTS)
def test_without_a_guard_a_wrong_receipt_is_accepted(
    db: ContractDatabase, own: Connection, guard: str
) -> None:
    """Mutants: what the tests above refuse is done."""
    mutated(db, MUTANTS[guard])
    filled(own, 8)
    queue.subscribe(own, "other", [TOPIC])
    foreign, *_ = queue.receive(own, "other")
    held, *batch = receive(own, 8)
    if guard == "its token, in the plain case":
        queue.release(own, QUEUE, receipts(batch))
        (alone,) = receive(own)
        queue.acknowledge(own, QUEUE, [alone.receipt._replace(token=uuid.uuid4())])
    elif guard == "its queue":
        queue.acknowledge(own, QUEUE, [foreign.receipt])
    elif guard == "its bits":
        acknowledge(own, batch[1:2])
        acknowledge(own, batch[1:2])
    else:
        queue.acknowledge(own, QUEUE, [held.receipt, foreign.receipt._replace(token=uuid.uuid4())])
