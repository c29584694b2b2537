"""Attempts, dead letters, parked keys and redrive in a log in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.database.dialect import Row
from penstock.errors import BackwardCommit, InvalidArgument, NotRedriven, TooManyParked
from penstock.testing import stream
from penstock.testing.statements import one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    HISTORY,
    EventRow,
    LeaseRow,
    Place,
    find_subscription,
    topics_by_id,
)
from penstock.topics.partition_ids import number_of, topic_of

MOST_PARKED = 10_000


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Table attempts, by subscription and partition: of the next event after the position."""

    sequence: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class LetterRow:
    """Table dead_letters, by subscription and number."""

    letter_id: int
    place: Place
    sequence: int
    event: EventRow
    attempts: int
    reason: str
    parked: bool
    died_at: datetime
    redriven_at: datetime | None = None
    #: How many attempts there were when it was redriven.
    attempts_before: int = 0

    @property
    def state(self) -> str:
        """What the letter waits for."""
        if self.redriven_at is not None:
            return "redriven"
        return "parked" if self.parked else "dead"

    @property
    def group(self) -> tuple[int, str | None]:
        """Letters that are parked together: the key in its partition."""
        return self.place[1], self.event.key


@statement
def suspects(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
) -> list[Row]:
    """Held leases whose next events may crash their consumer."""
    found: list[Row] = []
    for lease in _present(tx, subscription, consumer, partition_ids, lease_epochs):
        died = any(
            each.change == "expired"
            and each.place == lease.place
            and lease.moved_epoch <= each.lease_epoch < lease.lease_epoch
            for each in tx.rows("lease_history").values()
        )
        tried: AttemptRow | None = tx.get("attempts", lease.place)
        if tried is not None and tried.sequence == lease.position + 1:
            found.append((lease.partition_id, died, tried.sequence, tried.attempts, tried.reason))
        elif died:
            found.append((lease.partition_id, died, None, None, None))
    return found


@statement
def begin_attempt(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_id: int,
    lease_epoch: int,
    sequence: int,
    uncounted: int,
    reason: str,
) -> list[Row]:
    """Counts that the next event after the position is handed out, or records a group."""
    (lease,) = stream.held(
        tx, find_subscription(tx, subscription), consumer, [(partition_id, lease_epoch)]
    )
    if sequence != lease.position + 1:
        raise refused(BackwardCommit, f"sequence {sequence} is not after {lease.position}")
    tried: AttemptRow | None = tx.get("attempts", lease.place)
    if tried is None or tried.sequence != sequence:
        tried = AttemptRow(sequence, 0, reason)
    attempts = max(tried.attempts + (uncounted >= 0), uncounted + 1)
    counted = AttemptRow(sequence, attempts, reason or tried.reason)
    tx.put("attempts", lease.place, counted)
    return one(counted.attempts)


@statement
def give_up(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_id: int,
    lease_epoch: int,
    sequence: int,
    reason: str,
    attempts: int,
    park: bool,
) -> list[Row]:
    """Makes the next event after the position a dead letter and moves the position past it."""
    owner = find_subscription(tx, subscription)
    (lease,) = stream.held(tx, owner, consumer, [(partition_id, lease_epoch)])
    stream.move(tx, lease, sequence, sequence - 1)
    (letter,) = _store(tx, lease.place, [sequence], reason, max(attempts, 1), parked=park)
    tx.delete("attempts", lease.place)
    return one("parked" if letter.parked else "dead")


@statement
def parked_keys(
    tx: MemoryTransaction, subscription: str, partition_ids: Sequence[int]
) -> list[Row]:
    """The keys that are parked."""
    return sorted({
        each.group
        for each in _letters(tx, subscription)
        if each.parked and each.place[1] in partition_ids
    })  # fmt: skip


@statement
def commit_parking(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_id: int,
    lease_epoch: int,
    position: int,
    after: int | None,
    sequences: Sequence[int],
) -> list[Row]:
    """Commits one partition and parks some of the events that it passes."""
    passed = after is not None and all(after < each <= position for each in sequences)
    if not (passed and sequences) or len(set(sequences)) != len(sequences):
        raise refused(InvalidArgument, "a commit parks only events that it passes, each once")
    (lease,) = stream.held(
        tx, find_subscription(tx, subscription), consumer, [(partition_id, lease_epoch)]
    )
    stream.move(tx, lease, position, after)
    waits = "waits behind an earlier event of its key"
    _store(tx, lease.place, sequences, waits, 0, parked=True, behind=True)
    return one(None)


@statement
def poll_redriven(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
    max_events: int,
) -> list[Row]:
    """Hands out redriven dead letters of held leases, and counts that."""
    owner = find_subscription(tx, subscription)
    waiting = {each.place for each in _letters(tx, subscription) if each.redriven_at}
    leases = [
        lease
        for lease in _present(tx, subscription, consumer, partition_ids, lease_epochs)
        if lease.place in waiting
    ]
    if not leases:
        return []
    stream.held(
        tx, owner, consumer, sorted((each.partition_id, each.lease_epoch) for each in leases)
    )
    places = {each.place for each in leases}
    most = owner.settings["max_attempts"]
    for each in _redriven(tx, subscription, places):
        if each.attempts - each.attempts_before >= most:
            why = "was handed out as often as it may be, and never finished"
            _give_back(tx, subscription, each, why)
    found: list[Row] = []
    for each in _heads(tx, subscription, places)[: max(max_events, 1)]:
        put_letter(tx, replace(each, attempts=each.attempts + 1))
        found.append(
            (each.letter_id, each.attempts + 1, each.parked, HISTORY, each.place[1], *_event(each))
        )
    return found


@statement
def finish_redriven(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_id: int,
    lease_epoch: int,
    letter_ids: Sequence[int],
) -> list[Row]:
    """Removes redriven dead letters that were handled."""
    owner = find_subscription(tx, subscription)
    (lease,) = stream.held(tx, owner, consumer, [(partition_id, lease_epoch)])
    done = [
        each for each in _redriven(tx, subscription, {lease.place}) if each.letter_id in letter_ids
    ]
    if len(done) != len(letter_ids):
        raise refused(
            NotRedriven, f"of {len(letter_ids)} redriven dead letters, some no longer wait"
        )
    for each in done:
        tx.delete("dead_letters", (owner.subscription_id, each.letter_id))
    freed = {each.group for each in done if each.parked}
    for each in _letters(tx, subscription):
        if each.parked and each.redriven_at is None and each.group in freed:
            put_letter(tx, _again(tx, each))
    return one(None)


@statement
def fail_redriven(
    tx: MemoryTransaction,
    *,
    subscription: str,
    consumer: str,
    partition_id: int,
    lease_epoch: int,
    letter_id: int,
    reason: str,
) -> list[Row]:
    """Makes a redriven dead letter that was handed out dead again."""
    owner = find_subscription(tx, subscription)
    stream.held(tx, owner, consumer, [(partition_id, lease_epoch)])
    letter: LetterRow | None = tx.get("dead_letters", (owner.subscription_id, letter_id))
    if letter is not None and letter.redriven_at is not None:
        _give_back(tx, subscription, letter, reason)
    return one(None)


def redriven(tx: MemoryTransaction, subscription: str, letter_ids: Sequence[int] | None) -> int:
    """Make dead letters of a stream deliverable again; for a parked key, all of its letters."""
    find_subscription(tx, subscription)
    letters = _letters(tx, subscription)
    named = [each for each in letters if letter_ids is None or each.letter_id in letter_ids]
    groups = {each.group for each in named if each.parked}
    chosen = [
        each
        for each in letters
        if each.redriven_at is None and (each in named or (each.parked and each.group in groups))
    ]
    for each in chosen:
        put_letter(tx, _again(tx, each))
    return len(chosen)


@statement
def drop_dead_letters(
    tx: MemoryTransaction, subscription: str, letter_ids: Sequence[int]
) -> list[Row]:
    """Removes dead letters."""
    gone = [each for each in _letters(tx, subscription) if each.letter_id in letter_ids]
    for each in gone:
        tx.delete("dead_letters", (each.place[0], each.letter_id))
    return one(len(gone))


@statement
def dead_letters_of(
    tx: MemoryTransaction,
    *,
    subscription: str,
    max_rows: int,
    of_topic: str | None,
    of_key: str | None,
    of_type: str | None,
    of_state: str | None,
    before_id: int | None,
) -> list[Row]:
    """Dead letters without their payloads, newest first."""
    if tx.get("subscriptions", subscription) is None:
        return []
    topics = topics_by_id(tx)
    rows = [
        _described(each, topics[topic_of(each.place[1])].address)
        for each in reversed(_letters(tx, subscription))
        if topic_of(each.place[1]) in topics and (before_id is None or each.letter_id < before_id)
    ]
    wanted = {1: of_topic, 6: of_key, 7: of_type, 10: of_state}
    return [
        row
        for row in rows
        if all(value is None or row[column] == value for column, value in wanted.items())
    ][:max_rows]


@statement
def dead_letter_of(tx: MemoryTransaction, subscription: str, letter_id: int) -> list[Row]:
    """One dead letter with all its fields."""
    if tx.get("subscriptions", subscription) is None:
        return []
    topics = topics_by_id(tx)
    return [
        (
            *_described(each, topics[topic_of(each.place[1])].address),
            each.event.headers,
            each.event.payload,
        )
        for each in _letters(tx, subscription)
        if each.letter_id == letter_id
    ]


def redriven_in(tx: MemoryTransaction) -> dict[Place, int]:
    """How many redriven letters wait for the holder of each partition."""
    counts: dict[Place, int] = {}
    for each in tx.rows("dead_letters").values():
        if each.redriven_at is not None:
            counts[each.place] = counts.get(each.place, 0) + 1
    return counts


def _present(
    tx: MemoryTransaction,
    subscription: str,
    consumer: str,
    partition_ids: Sequence[int],
    lease_epochs: Sequence[int],
) -> list[LeaseRow]:
    """The given leases that the consumer still holds under the same lease_epoch."""
    owner_id = find_subscription(tx, subscription).subscription_id
    given = zip(partition_ids, lease_epochs, strict=True)
    leases = [(tx.get("leases", (owner_id, place)), epoch) for place, epoch in given]
    return [
        lease
        for lease, epoch in leases
        if lease and (lease.holder, lease.lease_epoch) == (consumer, epoch)
    ]


def _letters(tx: MemoryTransaction, subscription: str) -> list[LetterRow]:
    """The letters of a subscription, the oldest first."""
    owner_id = find_subscription(tx, subscription).subscription_id
    found = [each for each in tx.rows("dead_letters").values() if each.place[0] == owner_id]
    return sorted(found, key=lambda each: each.letter_id)


def _redriven(tx: MemoryTransaction, subscription: str, places: Iterable[Place]) -> list[LetterRow]:
    found = [
        each for each in _letters(tx, subscription) if each.redriven_at and each.place in places
    ]
    return sorted(found, key=lambda each: (each.place, each.sequence))


def _heads(tx: MemoryTransaction, subscription: str, places: Iterable[Place]) -> list[LetterRow]:
    """The redriven letters that may be handed out: of a parked key only the first."""
    firsts: dict[tuple[int, str | None], int] = {}
    for each in _letters(tx, subscription):
        if each.parked:
            firsts[each.group] = min(each.sequence, firsts.get(each.group, each.sequence))
    return [
        each
        for each in _redriven(tx, subscription, places)
        if not each.parked or each.sequence == firsts[each.group]
    ]


def _store(
    tx: MemoryTransaction,
    place: Place,
    sequences: Sequence[int],
    reason: str,
    attempts: int,
    *,
    parked: bool,
    behind: bool = False,
) -> list[LetterRow]:
    """Copies events.  An event that waits for a redriven key is redriven as well."""
    letters = [each for each in tx.rows("dead_letters").values() if each.place[0] == place[0]]
    now = tx.store.clock.now()
    waiting = {each.group for each in letters if each.parked and each.redriven_at is None}
    before = {(each.place, each.sequence): each for each in letters}
    stored = []
    for sequence in sequences:
        event: EventRow = tx.get("log", (place[1], sequence))[0]
        old = before.get((place, sequence))
        letter = LetterRow(
            old.letter_id if old else tx.store.next("dead_letters"),
            place,
            sequence,
            event,
            max(attempts, old.attempts if old else 0),
            reason,
            (parked and event.key is not None) or (old is not None and old.parked),
            now,
            now if behind and (place[1], event.key) not in waiting else None,
            old.attempts if old else 0,
        )
        put_letter(tx, letter)
        stored.append(letter)
    if parked and sum(each.parked for each in letters) + len(stored) > MOST_PARKED:
        raise refused(TooManyParked, f"more than {MOST_PARKED} events would be parked")
    return stored


def _give_back(tx: MemoryTransaction, subscription: str, letter: LetterRow, reason: str) -> None:
    """Makes letters dead again.  For a parked letter, its whole key waits again."""
    dead = replace(
        letter, redriven_at=None, died_at=tx.store.clock.now(), reason=reason or letter.reason
    )
    put_letter(tx, dead)
    if letter.parked:
        for each in _letters(tx, subscription):
            if each.parked and each.group == letter.group and each.redriven_at:
                put_letter(tx, replace(each, redriven_at=None))


def _again(tx: MemoryTransaction, letter: LetterRow) -> LetterRow:
    now = tx.store.clock.now()
    return replace(letter, redriven_at=now, attempts_before=letter.attempts)


def put_letter(tx: MemoryTransaction, letter: LetterRow) -> None:
    """Write a letter."""
    tx.put("dead_letters", (letter.place[0], letter.letter_id), letter)


def _event(letter: LetterRow) -> Row:
    event = letter.event
    return (
        letter.sequence, event.event_id, event.key, event.type, event.content_type, event.headers,
        event.payload, event.created_at,
    )  # fmt: skip


def _described(letter: LetterRow, topic: str) -> Row:
    event = letter.event
    return (
        letter.letter_id, topic, number_of(letter.place[1]), letter.sequence, HISTORY,
        event.event_id, event.key, event.type, event.content_type, len(event.payload), letter.state,
        letter.attempts, letter.reason, event.created_at, letter.died_at, None, None, None,
    )  # fmt: skip
