"""Queues of a log in memory: what they hand out, and the receipts for it.

A row for each event that was handed out, failed or came back.  Of the others, the position of the
subscription and the log tell which are there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from itertools import islice, pairwise

from penstock.database.dialect import Row
from penstock.errors import InvalidArgument, MalformedReceipt, StaleReceipt
from penstock.subscriptions.queue import QueueSettings
from penstock.testing import dead_letters, subscriptions
from penstock.testing.queue_rows import (
    Dealt,
    bury,
    event_row,
    find_queue,
    put_dealt,
    unfinished_rows,
)
from penstock.testing.statements import NotInMemory, one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    SubscriptionRow,
    find_subscription,
    high_watermark,
    leases_of,
    lock_lease,
    put_lease,
    topics_by_id,
)
from penstock.topics.partition_ids import topic_of

PRESETS = QueueSettings(30, 5, 5, 100_000, 2, 300, 0.2)
_BOUNDS: dict[str, tuple[float, float, bool]] = {
    "visibility_seconds": (0, 43_200, False),
    "max_deliveries": (1, 1_000, True),
    "max_failures": (1, 1_000, True),
    "max_in_flight": (1, 1_000_000, True),
    "first_backoff_seconds": (0, 86_400, False),
    "longest_backoff_seconds": (0, 604_800, False),
    "jitter": (0, 1, False),
    "retention_seconds": (0, 315_360_000, False),
}
_MOST_RECEIVED, _MOST_ENTRIES, _LONGEST_ENTRY = 1_000, 10_000, 1_000
_LONGEST_CLAIM, _LONGEST_DELAY = 43_200, 31_536_000
_SHORTEST_LIMIT = timedelta(seconds=10)  # a transaction with a claim may take at least so long
_NEVER_FINISHED = "was handed out as often as it may be, and never finished"


@statement
def subscribe_queue(
    tx: MemoryTransaction, subscription: str, topics: Sequence[str], start: str
) -> list[Row]:
    """Creates a subscription in queue mode, or adds topics to it."""
    added = subscriptions.subscribed(tx, subscription, topics, start, "queue")
    owner_id = find_subscription(tx, subscription).subscription_id
    if tx.get("queues", owner_id) is None:
        tx.put("queues", owner_id, PRESETS)
    return one(added)


@statement
def configure_queue(tx: MemoryTransaction, subscription: str, settings: str) -> list[Row]:
    """Sets settings of a queue."""
    owner, _ = find_queue(tx, subscription)
    tx.lock(("queue", owner.subscription_id))
    _, present = find_queue(tx, subscription)
    wanted = json.loads(settings)
    for name, value in wanted.items():
        if not _is_possible(name, value):
            raise refused(
                InvalidArgument, f"the setting {name[:100]} of a queue cannot be {value!r}"
            )
    order = wanted.get("order", present.order)
    in_hand = any(not each.done for each in unfinished_rows(tx, owner).values())
    if order != present.order and (in_hand or present.order == "key"):
        kept = "it is kept while events are in hand, and once it is key"
        raise refused(InvalidArgument, f"the order of the queue cannot become {order}: {kept}")
    tx.put("queues", owner.subscription_id, replace(present, **wanted))
    return one(None)


@statement
def describe_queue(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """The settings of a queue."""
    _, settings = find_queue(tx, subscription)
    return [tuple(getattr(settings, each.name) for each in fields(settings))]


@statement
def receive(
    tx: MemoryTransaction, subscription: str, max_events: int, visibility_seconds: float | None
) -> list[Row]:
    """Hands out events."""
    owner, settings = find_queue(tx, subscription)
    seconds = settings.visibility_seconds if visibility_seconds is None else visibility_seconds
    if not (1 <= max_events <= _MOST_RECEIVED and 0 <= seconds <= _LONGEST_CLAIM):
        raise refused(InvalidArgument, f"cannot receive {max_events} events for {seconds} seconds")
    if owner.paused or not tx.lock(("queue", owner.subscription_id), wait=False):
        return []
    _end_claims(tx, owner, settings)
    _move_positions(tx, owner)
    deadline = tx.store.clock.now() + timedelta(seconds=seconds)
    topics = topics_by_id(tx)
    claims: dict[int, tuple[int, uuid.UUID]] = {}
    found: list[Row] = []
    for each in _chosen(tx, owner, settings, max_events):
        partition_id = each.place[1]
        if partition_id not in claims:
            claims[partition_id] = _new_claim(tx)
        claim, token = claims[partition_id]
        dealt = replace(
            each, claim=claim, token=token, deadline=deadline, due_at=None, begun=True,
            deliveries=each.deliveries + 1,
        )  # fmt: skip
        put_dealt(tx, dealt)
        address = topics[topic_of(partition_id)].address
        found.append(
            (claim, token, deadline, dealt.deliveries, dealt.failures, *event_row(dealt, address))
        )
    return found


@statement
def acknowledge(
    tx: MemoryTransaction,
    *,
    subscription: str,
    claims: Sequence[int],
    first_sequences: Sequence[int],
    last_sequences: Sequence[int],
    tokens: Sequence[uuid.UUID],
    partly: bool,
) -> list[Row]:
    """Finishes events, in the caller's transaction."""
    entries = _entries(claims, first_sequences, last_sequences, tokens)
    return _settled(tx, subscription, entries, partly, _finished)


@statement
def release_claims(
    tx: MemoryTransaction,
    *,
    subscription: str,
    claims: Sequence[int],
    first_sequences: Sequence[int],
    last_sequences: Sequence[int],
    tokens: Sequence[uuid.UUID],
    partly: bool,
) -> list[Row]:
    """Puts events back that nobody has begun."""
    entries = _entries(claims, first_sequences, last_sequences, tokens)
    return _settled(tx, subscription, entries, partly, _freed)


@statement
def reject(
    tx: MemoryTransaction,
    *,
    subscription: str,
    claims: Sequence[int],
    first_sequences: Sequence[int],
    last_sequences: Sequence[int],
    tokens: Sequence[uuid.UUID],
    reason: str,
    delay_seconds: float | None,
    partly: bool,
) -> list[Row]:
    """Records that events have failed."""
    if delay_seconds is not None and not 0 <= delay_seconds <= _LONGEST_DELAY:
        raise refused(InvalidArgument, f"an event cannot be delayed by {delay_seconds} seconds")
    _, settings = find_queue(tx, subscription)

    def failed(tx: MemoryTransaction, dealt: Dealt) -> None:
        failures = dealt.failures + 1
        pause = _pause(tx, settings, failures) if delay_seconds is None else delay_seconds
        again = replace(
            dealt, token=None, copied=True, failures=failures, reason=reason,
            due_at=tx.store.clock.now() + timedelta(seconds=pause),
        )  # fmt: skip
        if failures >= settings.max_failures or dealt.deliveries >= settings.max_deliveries:
            bury(tx, again, reason or "was rejected as often as it may be")
        else:
            put_dealt(tx, again)

    entries = _entries(claims, first_sequences, last_sequences, tokens)
    return _settled(tx, subscription, entries, partly, failed)


@statement
def extend(
    tx: MemoryTransaction,
    *,
    subscription: str,
    claims: Sequence[int],
    first_sequences: Sequence[int],
    last_sequences: Sequence[int],
    tokens: Sequence[uuid.UUID],
    visibility_seconds: float,
    body: bytes | None,
    keeps_receipts: bool,
) -> list[Row]:
    """Gives events more time and new receipts, or puts them back."""
    if not 0 <= visibility_seconds <= _LONGEST_CLAIM:
        text = f"a claim cannot be extended by {visibility_seconds} seconds"
        raise refused(InvalidArgument, text)
    entries = _entries(claims, first_sequences, last_sequences, tokens)
    if body is not None and (len(entries) > 1 or entries[0][1] != entries[0][2]):
        raise refused(InvalidArgument, "a body was given for several events")
    _, settings = find_queue(tx, subscription)
    deadline = tx.store.clock.now() + timedelta(seconds=visibility_seconds)
    rows: list[Row] = []
    for number, taken in enumerate(_taken(tx, subscription, entries, partly=False), 1):
        claim, token = _new_claim(tx)
        for each in taken or ():
            kept = each if body is None else replace(each, body=body, copied=True)
            if visibility_seconds:
                held = kept if keeps_receipts else replace(kept, claim=claim, token=token)
                put_dealt(tx, replace(held, deadline=deadline))
                rows.append((number, each.sequence, each.sequence, claim, token, deadline))
            elif each.deliveries >= settings.max_deliveries:
                why = "was handed out as often as it may be, and put back each time"
                bury(tx, kept, why)
            else:
                put_dealt(tx, replace(kept, token=None))
    return rows


@statement
def purge(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """Throws away what a queue has not finished."""
    owner, _ = find_queue(tx, subscription)
    size = len(list(_unfinished(tx, owner)))
    for key in tx.rows("queue_events"):
        if key[0] == owner.subscription_id:
            tx.delete("queue_events", key)
    for lease in leases_of(tx, owner.subscription_id):
        put_lease(tx, replace(lease, position=high_watermark(tx, lease.partition_id)))
    return one(size)


@statement
def queue_statistics(tx: MemoryTransaction, subscription: str) -> list[Row]:
    """How many events a queue has, by state."""
    owner, _ = find_queue(tx, subscription)
    now = tx.store.clock.now()
    states = [
        "delayed" if each.due_at else "in_flight" if each.is_hidden(now) else "ready"
        for each in _unfinished(tx, owner)
    ]
    dead = sum(key[0] == owner.subscription_id for key in tx.rows("dead_letters"))
    counts = [states.count(each) for each in ("ready", "in_flight", "delayed")]
    return [(len(states), *counts, dead)]


@statement
def peek(tx: MemoryTransaction, subscription: str, max_events: int) -> list[Row]:
    """The next events of a queue, without handing them out."""
    if not 1 <= max_events <= _MOST_RECEIVED:
        raise refused(InvalidArgument, f"cannot peek at {max_events} events")
    owner, settings = find_queue(tx, subscription)
    now, topics = tx.store.clock.now(), topics_by_id(tx)
    unfinished = list(_unfinished(tx, owner))
    heads = _heads(unfinished) if settings.order == "key" else unfinished
    rows: list[Row] = []
    for each in unfinished:
        state = "ready" if each in heads else "behind"
        visible_at = each.due_at
        if each.due_at is not None and each.due_at > now:
            state = "delayed"
        elif each.is_hidden(now):
            state, visible_at = "in_flight", each.deadline
        event = event_row(each, topics[topic_of(each.place[1])].address)
        rows.append((state, visible_at, each.deliveries, each.failures, *event))
    return sorted(rows, key=lambda row: (row[6], row[4], row[5]))[:max_events]


@statement
def redrive(
    tx: MemoryTransaction,
    subscription: str,
    letter_ids: Sequence[int] | None,
    keep_deliveries: bool,
) -> list[Row]:
    """Makes dead letters deliverable again: of a queue, events with new counts."""
    owner = find_subscription(tx, subscription)
    if keep_deliveries:
        raise NotInMemory("the log in memory counts anew", hint="test this on a real database")
    if owner.mode != "queue":
        return one(dead_letters.redriven(tx, subscription, letter_ids))
    tx.lock(("queue", owner.subscription_id))
    _, settings = find_queue(tx, subscription)
    now, again = tx.store.clock.now(), 0
    for key, letter in sorted(tx.rows("dead_letters").items()):
        if key[0] != owner.subscription_id or (letter_ids is not None and key[1] not in letter_ids):
            continue
        tx.delete("dead_letters", key)
        event = letter.event
        fresh = Dealt(letter.place, letter.sequence, event, event.created_at, copied=True)
        waits = settings.order == "none" or event.key is None  # else for its key
        put_dealt(tx, replace(fresh, reason=letter.reason, due_at=now if waits else None))
        again += 1
    return one(again)


# -- what is handed out ---------------------------------------------------------------------------


def _unfinished(
    tx: MemoryTransaction, owner: SubscriptionRow, most: int | None = None
) -> Iterator[Dealt]:
    """Every event of a queue; of each partition at most so many that nobody has had yet."""
    known = unfinished_rows(tx, owner)
    yield from (each for each in known.values() if not each.done)
    for lease in leases_of(tx, owner.subscription_id):
        new = (
            number
            for number in range(lease.position + 1, high_watermark(tx, lease.partition_id) + 1)
            if (*lease.place, number) not in known
        )
        for number in islice(new, most):
            event, at = tx.get("log", (lease.partition_id, number))
            yield Dealt(lease.place, number, event, at)


def _chosen(
    tx: MemoryTransaction, owner: SubscriptionRow, settings: QueueSettings, most: int
) -> list[Dealt]:
    """What comes next: the oldest first.  A suspect, which was handed out twice, comes alone."""
    now = tx.store.clock.now()
    in_order = settings.order == "key"
    unfinished = list(_unfinished(tx, owner, None if in_order else most))
    room = settings.max_in_flight - sum(each.is_in_window for each in unfinished)
    free = sorted(
        (each for each in (_heads(unfinished) if in_order else unfinished) if each.is_free(now)),
        key=lambda each: (each.sequence, each.place),
    )
    chosen: list[Dealt] = []
    for each in free:
        if each.is_suspect and chosen:
            continue
        if len(chosen) == most or (chosen and chosen[0].is_suspect):
            break
        if not each.is_in_window and room <= 0:
            continue
        if tx.lock(("delivery", each.key), wait=False):
            room -= not each.is_in_window
            chosen.append(each)
    return chosen


def _heads(unfinished: Iterable[Dealt]) -> list[Dealt]:
    """Of each key the event that may come: the one that was begun, or else the first."""
    firsts: dict[tuple[int, str], Dealt] = {}
    without_key: list[Dealt] = []
    for each in sorted(unfinished, key=lambda each: (not each.begun, each.sequence)):
        if each.event.key is None:
            without_key.append(each)
        else:
            firsts.setdefault((each.place[1], each.event.key), each)
    return [*without_key, *firsts.values()]


def _end_claims(tx: MemoryTransaction, owner: SubscriptionRow, settings: QueueSettings) -> None:
    """Give up the events whose last delivery is over."""
    now = tx.store.clock.now()
    for each in unfinished_rows(tx, owner).values():
        over = each.token is not None and not each.done and not each.is_hidden(now)
        if (
            over
            and each.deliveries >= settings.max_deliveries
            and tx.lock(("delivery", each.key), wait=False)
        ):
            bury(tx, each, _NEVER_FINISHED)


def _move_positions(tx: MemoryTransaction, owner: SubscriptionRow) -> None:
    """Move each position to before the lowest unfinished event; copies do not hold it."""
    known = unfinished_rows(tx, owner)
    for each in leases_of(tx, owner.subscription_id):
        lease = lock_lease(tx, each.place, wait=False)
        if lease is None:
            continue
        position = lease.position
        while (row := known.get((*lease.place, position + 1))) and (row.done or row.copied):
            position += 1
        put_lease(tx, replace(lease, position=position))
        for row in known.values():
            if row.place == lease.place and row.done and row.sequence <= position:
                tx.delete("queue_events", row.key)


# -- receipts -------------------------------------------------------------------------------------

#: Claim, first and last sequence, token.
_Entry = tuple[int, int, int, uuid.UUID]


def _entries(
    claims: Sequence[int], firsts: Sequence[int], lasts: Sequence[int], tokens: Sequence[uuid.UUID]
) -> list[_Entry]:
    """The entries of a call.  MalformedReceipt when they cannot be read."""
    given = (claims, firsts, lasts, tokens)
    is_good = all(given) and len({len(each) for each in given}) == 1
    entries = list(zip(*given, strict=True)) if is_good else []
    in_order = sorted((claim, first, last) for claim, first, last, _ in entries)
    if (
        not 1 <= len(entries) <= _MOST_ENTRIES
        or any(token is None for *_, token in entries)
        or any(not 1 <= first <= last < first + _LONGEST_ENTRY for _, first, last in in_order)
        or any(one[0] == two[0] and one[2] >= two[1] for one, two in pairwise(in_order))
    ):
        raise refused(MalformedReceipt, "a receipt is malformed, or an event is named twice")
    return entries


def _taken(
    tx: MemoryTransaction, subscription: str, entries: Sequence[_Entry], *, partly: bool
) -> list[list[Dealt] | None]:
    """The events of each entry, locked; None for one whose receipt is not good for all of them."""
    owner, _ = find_queue(tx, subscription)
    held = {
        (each.claim, each.sequence): each.key
        for each in unfinished_rows(tx, owner).values()
        if each.token is not None and not each.done
    }
    found: list[list[Dealt] | None] = []
    for claim, first, last, token in entries:
        keys = [held.get((claim, number)) for number in range(first, last + 1)]
        events = [_locked(tx, key, claim, token) for key in keys if key is not None]
        good = [each for each in events if each is not None]
        found.append(good if len(good) == len(keys) else None)
    if not partly and None in found:
        raise refused(StaleReceipt, "a receipt is not good, or no longer")
    deadlines = [each.deadline for taken in found for each in taken or () if each.deadline]
    if deadlines:
        left = min(deadlines) - tx.store.clock.now()
        tx.limit(max(left, _SHORTEST_LIMIT))
    return found


def _locked(
    tx: MemoryTransaction, key: tuple[int, int, int], claim: int, token: uuid.UUID
) -> Dealt | None:
    """An event that a receipt is good for, as it stands once its lock is there."""
    tx.lock(("delivery", key))
    row: Dealt | None = tx.get("queue_events", key)
    is_good = row is not None and not row.done and (row.claim, row.token) == (claim, token)
    return row if is_good else None


def _settled(
    tx: MemoryTransaction,
    subscription: str,
    entries: Sequence[_Entry],
    partly: bool,
    settle: Callable[[MemoryTransaction, Dealt], None],
) -> list[Row]:
    taken = _taken(tx, subscription, entries, partly=partly)
    for each in (each for events in taken for each in events or ()):
        settle(tx, each)
    return one([events is not None for events in taken])


def _finished(tx: MemoryTransaction, dealt: Dealt) -> None:
    put_dealt(tx, replace(dealt, done=True, token=None))


def _freed(tx: MemoryTransaction, dealt: Dealt) -> None:
    """It comes again at once, and the delivery does not count."""
    put_dealt(tx, replace(dealt, token=None, deliveries=max(dealt.deliveries - 1, 0)))


def _pause(tx: MemoryTransaction, settings: QueueSettings, failures: int) -> float:
    """Twice as long with each failure, up to the longest, less a random share."""
    longest = settings.longest_backoff_seconds
    pause = min(settings.first_backoff_seconds * 2.0 ** min(failures - 1, 40), longest)
    return float(pause * (1 - settings.jitter * tx.store.random.random()))


def _new_claim(tx: MemoryTransaction) -> tuple[int, uuid.UUID]:
    token = uuid.UUID(int=tx.store.random.getrandbits(128), version=4)
    return tx.store.next("queue_claims"), token


def _is_possible(name: str, value: object) -> bool:
    if name == "order":
        return value in ("none", "key")
    lowest, highest, is_whole = _BOUNDS.get(name, (1, 0, False))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return lowest <= value <= highest and (not is_whole or value == int(value))
