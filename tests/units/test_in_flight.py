"""The events of a partition in hand: lanes, the contiguous prefix, and what may be read ahead."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from penstock.consumer.stream.in_flight import OVERHEAD_BYTES, PartitionBuffer, Unit, by_key
from penstock.consumer.stream.reading import PROBE_ROWS, Bounds, Room
from penstock.records import Event, Lease
from tests.kit.proof import proves

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = Lease("a/b", 0, 7, 1, "ACTIVE", 0, 1)


def event(sequence: int, key: str | None = None, size: int = 1, kind: str = "") -> Event:
    return Event(
        "a/b", 0, sequence, uuid.UUID(int=sequence), key, kind, "", {}, b"x" * size, NOW, NOW, 1
    )


def _worked_off(seed: int) -> tuple[PartitionBuffer, list[str]]:
    """Random reads, failures and ends in any order.  Returns what was wrong."""
    rng = random.Random(seed)
    each, running, wrong = PartitionBuffer(LEASE, lane_of=by_key), list[Unit](), list[str]()
    finished: set[int] = set()
    order: dict[str, list[int]] = defaultdict(list)
    now, read = 0.0, 0
    while read < 200 or running or len(finished) < 200:
        now += 1
        step = rng.choice(["read", "begin", "begin", "end"])
        if step == "read" and read < 200:
            count = min(rng.randint(1, 20), 200 - read)
            keys = [rng.choice(["a", "b", "c", None]) for _ in range(count)]
            each.take([event(read + n + 1, key) for n, key in enumerate(keys)])
            read += count
        elif step == "begin" and (unit := each.begin(rng.randint(1, 4), now)) is not None:
            if unit.lane in {other.lane for other in running}:
                wrong.append(f"two of {unit.lane} at once")
            running.append(unit)
        elif step == "end" and running:
            unit = running.pop(rng.randrange(len(running)))
            done = rng.randint(0, len(unit.events))
            each.end(unit, done, now, pause_until=now + rng.randint(0, 3))
            finished |= {event.sequence for event in unit.events[:done]}
            order[str(unit.lane)] += [event.sequence for event in unit.events[:done]]
        if not finished.issuperset(range(1, each.done + 1)):
            wrong.append(f"{each.done} is beyond what is done")
    if each.done != 200 or each.rows or each.bytes or any(s != sorted(s) for s in order.values()):
        wrong.append("the end")
    return each, wrong


@proves("S13", how="random interleavings")
def test_the_position_is_the_end_of_the_contiguous_prefix() -> None:
    """S13, a key in order, one event of it at a time; over random interleavings."""
    for seed in range(60):
        assert _worked_off(seed)[1] == []


def test_a_position_without_the_prefix_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the position is the highest sequence that is done."""

    def jump(each: PartitionBuffer) -> None:
        each.done = max(each._ahead, default=each.done)

    monkeypatch.setattr(PartitionBuffer, "_advance", jump)
    assert any("beyond what is done" in text for text in _worked_off(1)[1])


@proves("L7 in streams", guard="lanes by key")
def test_two_of_a_key_at_once_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a lane that is under way is begun again when more of it is read."""

    def put(each: PartitionBuffer, lane: object, events: Sequence[Event]) -> None:
        each._lanes.setdefault(lane, deque()).extend(events)
        each._ready.append(lane)

    monkeypatch.setattr(PartitionBuffer, "_put", put)
    each = PartitionBuffer(LEASE, lane_of=by_key)
    each.take([event(1, "a")])
    first = each.begin(1, 0)
    each.take([event(2, "a")])
    second = each.begin(1, 0)
    assert first is not None
    assert second is not None
    assert first.lane == second.lane


def test_what_nobody_wants_is_passed() -> None:
    """Also in between, and when nothing else was read."""
    each = PartitionBuffer(LEASE)
    wanted = [event(n, kind="x" if n % 3 else "y") for n in range(1, 8)]
    assert each.take(wanted, lambda event: event.type == "x") == 2
    assert each.done == 0
    unit = each.begin(2, 0)
    assert unit is not None
    assert ([e.sequence for e in unit.events], unit.through) == ([1, 2], 3)
    each.end(unit, 2, 0)
    assert each.done == 3
    each = PartitionBuffer(LEASE)
    assert each.take(wanted, lambda event: False) == 7
    assert (each.done, each.rows, each.begin(9, 0)) == (7, 0, None)


def test_after_a_failure_half_as_many_are_handed_out() -> None:
    """Until the one that fails is alone; then twice as many again."""
    each, sizes = PartitionBuffer(LEASE), list[int]()
    each.take([event(n) for n in range(1, 41)])
    while (unit := each.begin(16, 0)) is not None:
        sizes.append(len(unit.events))
        if len(unit.events) > 1 and any(event.sequence == 11 for event in unit.events):
            each.narrow(unit)
            each.end(unit, 0, 0)
        else:
            each.end(unit, len(unit.events), 0)
            each.widen(unit)
    assert sizes == [16, 8, 16, 8, 4, 2, 4, 2, 1, 2, 4, 8, 15]
    assert each.done == 40


@proves("S16 after a death")
def test_suspects_go_out_in_groups_of_fifty_sequences() -> None:
    """However few of them are wanted: the next one counts so many from where a group began."""
    each, sizes = PartitionBuffer(LEASE), list[tuple[int, int]]()
    each.alone_to, each.careful_to = 3, 120
    each.take([event(n) for n in range(1, 201)], lambda event: event.sequence % 2 == 1)
    while (unit := each.begin(500, 0)) is not None:
        sizes.append((unit.events[0].sequence, len(unit.events)))
        each.end(unit, len(unit.events), 0)
    assert sizes == [(1, 1), (3, 1), (5, 25), (55, 25), (105, 25), (155, 23)]


def test_a_pause_holds_its_lane_only() -> None:
    """And a lane that waits is not handed out before its time."""
    each = PartitionBuffer(LEASE, lane_of=by_key)
    each.take([event(1, "a"), event(2, "b"), event(3, "a")])
    first = each.begin(5, 0)
    assert first is not None
    each.end(first, 0, 0, pause_until=10)
    second = each.begin(5, 1)
    assert second is not None
    assert (second.lane, each.next_pause_end, each.begin(5, 9.9)) == ("b", 10, None)
    again = each.begin(5, 10)
    assert again is not None
    assert [event.sequence for event in again.events] == [1, 3]


def test_what_was_not_begun_can_be_dropped() -> None:
    """For a lease that is asked back."""
    each = PartitionBuffer(LEASE)
    each.take([event(n) for n in range(1, 6)])
    unit = each.begin(2, 0)
    assert unit is not None
    each.drop_waiting()
    assert (each.rows, each.under_way) == (2, 1)
    each.end(unit, 2, 0)
    assert (each.done, each.begin(5, 0), each.rows, each.bytes) == (2, None, 0, 0)


@proves("R5")
def test_memory_is_shared_by_the_partitions_and_bounded() -> None:
    """Rows and bytes; nothing is starved; an event that is larger than all room comes alone."""
    bounds = Bounds(rows=1_000, bytes=10_000_000, batch=500)
    rng = random.Random(5)
    for size, most in ((100, 1_000), (100_000, 99)):
        room, hands = Room(bounds), [PartitionBuffer(LEASE) for _ in range(4)]
        for _ in range(60):
            wanted, count = room.chunk(hands)
            assert count <= room.together(count) <= 4 * count
            assert room.together(count) * size <= max(count * size, bounds.bytes / 4)
            for each in wanted:
                events = [event(each.read + n + 1, size=size) for n in range(count)]
                room.learn(events, size * count)
                each.take(events)
            drained = rng.choice(hands[1:])  # the first one is never worked off
            unit = drained.begin(500, 0)
            if unit is not None:
                drained.end(unit, len(unit.events), 0)
            assert sum(each.rows for each in hands) <= max(most, 4 * PROBE_ROWS)
            assert all(each.read for each in hands)
        assert min(each.done for each in hands[1:]) > most
    room = Room(Bounds(rows=10, bytes=1_000, batch=10))
    room.learn([event(1, size=50_000)], 50_000)
    assert room.chunk([PartitionBuffer(LEASE)])[1] == 1
    assert OVERHEAD_BYTES > 0
