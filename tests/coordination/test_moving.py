"""A subscription moves between stores: no position is lost, and the old store accepts none."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument, StaleLease
from penstock.leases.coordination.moving import move
from tests.coordination.bench import Bench, InMemory, state


def test_there_and_back(bench: Bench) -> None:
    here, there = bench.open(), InMemory()
    there.partition_ids = []
    target = there.open()
    first, second, *_ = bench.partition_ids
    here.register("a")
    for partition_id, position in ((first, 3), (second, 5)):
        assert here.claim(partition_id, "a", 0)
        here.update_position(partition_id, "a", position, 1)
    bench.expire("a")

    assert move(here, target) == len(bench.partition_ids)
    assert [target.position(each) for each in (first, second)] == [3, 5]
    with pytest.raises(StaleLease):
        here.update_position(first, "a", 4, 1)
    assert here.active_consumers() == target.active_consumers() == {}

    target.register("b")
    held = target.claim(first, "b", state(target, first).lease_epoch)
    assert held is not None
    assert held.lease_epoch > 2  # beyond all that the old store has given out
    target.update_position(first, "b", 9, held.lease_epoch)
    target.deregister("b")
    assert move(target, here) == len(bench.partition_ids)
    assert [here.position(each) for each in (first, second)] == [9, 5]


def test_who_still_works_is_not_moved() -> None:
    bench, target = InMemory(), InMemory().open()
    here = bench.open()
    here.register("a")
    assert here.claim(bench.partition_ids[0], "a", 0)
    with pytest.raises(InvalidArgument, match="still held by a"):
        move(here, target, patience=0)
    assert here.owned_by("a")
    assert [each.lease_epoch for each in target.unowned()] == [0] * len(bench.partition_ids)
    here.update_position(bench.partition_ids[0], "a", 1, 1)
