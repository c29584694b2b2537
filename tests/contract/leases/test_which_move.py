"""Which partitions a consumer gives back, and which it takes, on every engine."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, join, without
from tests.kit.log import drain, topic
from tests.kit.queue import mutated
from tests.kit.stream import STREAM, SUBSCRIPTION

#: Unread events of each partition.
BACKLOGS = [40, 10, 30, 20]

LARGEST_FIRST: Guard = dict.fromkeys(
    ("postgres", "mysql"),
    ("release_surplus", "ORDER BY h.backlog, h", "ORDER BY h.backlog DESC, h"),
)
_PIVOT = {
    "postgres": "pivot double precision := random();",
    "mysql": "pivot DOUBLE DEFAULT RAND();",
}
_ORDER = {
    "postgres": "ORDER BY l.random_key < pivot, l.random_key",
    "mysql": "ORDER BY b.random_key < pivot, b.random_key",
}


def _from(place: float) -> Guard:
    """Everybody begins at the same place."""
    values = {"postgres": "random()", "mysql": "RAND()"}
    return {
        kind: ("acquire", text, text.replace(values[kind], str(place)))
        for kind, text in _PIVOT.items()
    }


in_sql = pytest.mark.parametrize("db", ["postgres", "mysql", "mariadb"], indirect=True)


def _published(own: Any, backlogs: list[int]) -> None:
    topic(own, len(backlogs), STREAM)
    publish_batch(
        own,
        [
            Message(STREAM, b"x", partition=number)
            for number, events in enumerate(backlogs)
            for _ in range(events)
        ],
    )
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])


def _asked_back(own: Any) -> set[int]:
    """What the holder of all four partitions is asked for when a second consumer comes."""
    _published(own, BACKLOGS)
    (first,) = join(own, 1)
    assert len(stream.check_in(own, first)) == len(BACKLOGS)
    (second,) = join(own, 1, first=1)
    stream.check_in(own, second)
    held = stream.check_in(own, first)
    return {lease.partition for lease in held if lease.state == "RELEASING"}


def test_surplus_is_given_up_smallest_backlog_first(db: ContractDatabase) -> None:
    """Guard: the order by backlog; who takes over begins with what is nearly done."""
    assert _asked_back(db.connect()) == {1, 3}


@in_sql
def test_largest_backlog_first_is_noticed(db: ContractDatabase) -> None:
    """Mutant: the other way round."""
    without(db, LARGEST_FIRST)
    assert _asked_back(db.connect()) == {0, 2}


def _taken(own: Any) -> set[int]:
    """What one consumer of sixteen takes, twelve times: its share is one partition of sixteen."""
    _published(own, [1] * 16)
    one, *_ = join(own, 16)
    found = set()
    for _ in range(12):
        (lease,) = stream.check_in(own, one)
        found.add(lease.partition)
        stream.release(own, one, [lease])
    return found


def test_a_shortage_is_filled_from_a_random_place(db: ContractDatabase) -> None:
    """Guard: the pivot; by chance all twelve are the same once in 10^13 runs."""
    assert len(_taken(db.connect())) > 1


@in_sql
def test_from_a_fixed_place_all_want_the_same(db: ContractDatabase) -> None:
    """Mutant: no random pivot."""
    without(db, _from(0))
    assert len(_taken(db.connect())) == 1


@in_sql
def test_beyond_the_last_place_it_begins_anew(db: ContractDatabase) -> None:
    """Guard: the second pass."""
    without(db, _from(1))
    assert _all_taken(db.connect()) == 4


@in_sql
def test_with_one_pass_nothing_is_taken_beyond_it(db: ContractDatabase) -> None:
    """Mutant: only what lies beyond the pivot is taken."""
    both = {
        kind: ("acquire", [_from(1)[kind][1:], (text, f"AND {text.split()[2]} >= pivot {text}")])
        for kind, text in _ORDER.items()
    }
    mutated(db, both)
    assert _all_taken(db.connect()) == 0


def _all_taken(own: Any) -> int:
    _published(own, [1] * 4)
    (one,) = join(own, 1)
    return len(stream.check_in(own, one))
