"""Sharing out over the contract, both ways, with what PXRS tests of its coordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

from penstock.errors import InvalidArgument, StaleLease
from penstock.leases.coordination import LeaseRegistry
from penstock.leases.coordination.assigners import (
    IDLE_SECONDS,
    Assigned,
    Assigner,
    Coordinated,
    Pinned,
    Revoked,
    WorkStealing,
)
from tests.coordination.bench import Bench, InMemory, state

WAYS = [WorkStealing, Coordinated]


class Group:
    """Consumers that check in by turns, each as in a process of its own, and what they are told."""

    def __init__(self, bench: Bench, way: type[Assigner]) -> None:
        self.bench = bench
        self.way = way
        self.members: dict[str, Assigner] = {}
        self.told: list[tuple[str, str, list[int]]] = []

    def join(self, *consumers: str) -> None:
        for consumer in consumers:
            member = self.way(
                self.bench.open(),
                consumer,
                on_assigned=self.assigned(consumer),
                on_revoked=self.revoked(consumer),
            )
            member.join()
            self.members[consumer] = member

    def rounds(self, count: int = 2) -> None:
        for _ in range(count):
            for member in self.members.values():
                member.check_in()

    def held(self) -> dict[str, list[int]]:
        """By the store, which has to agree with each member."""
        snapshot = self.any().snapshot().partitions.values()
        found = {
            name: [each.partition_id for each in snapshot if each.live and each.holder == name]
            for name in self.members
        }
        assert {name: sorted(each.held) for name, each in self.members.items()} == found
        return found

    def counts(self) -> list[int]:
        return sorted(map(len, self.held().values()), reverse=True)

    def any(self) -> LeaseRegistry:
        return next(iter(self.members.values())).registry

    def assigned(self, consumer: str) -> Assigned:
        def told(positions: Mapping[int, int]) -> None:
            self.told.append((consumer, "assigned", sorted(positions)))

        return told

    def revoked(self, consumer: str) -> Revoked:
        def told(partition_ids: Sequence[int]) -> None:
            self.told.append((consumer, "revoked", sorted(partition_ids)))
            for partition_id in partition_ids:  # the last commit is accepted
                member = self.members[consumer]
                member.commit(partition_id, member.held[partition_id].position + 1)

        return told


@pytest.mark.parametrize("way", WAYS)
def test_a_group_lives(bench: Bench, way: type[Assigner]) -> None:
    group = Group(bench, way)
    group.join("a")
    group.rounds(1)
    assert group.told == [("a", "assigned", bench.partition_ids)]
    assert {state(group.any(), each).position for each in bench.partition_ids} == {0}

    group.told.clear()
    group.join("b")
    group.rounds()
    assert group.counts() == [4, 4]
    (first, second) = group.told
    assert (first[0], first[1]) == ("a", "revoked")
    assert second == ("b", "assigned", first[2])  # revoked first, then the same ones assigned
    assert {state(group.any(), each).position for each in first[2]} == {1}

    group.join("c")
    group.rounds()
    assert group.counts() == [3, 3, 2]
    group.told.clear()
    group.rounds()
    assert group.told == []  # nothing moves in the steady state

    before = group.held()
    group.members["a"].leave()
    del group.members["a"]
    group.told.clear()
    group.rounds()
    assert group.counts() == [4, 4]
    for name in ("b", "c"):  # what is held stays where it is
        assert set(before[name]) <= set(group.held()[name])
    assert [what for _, what, _ in group.told] == ["assigned", "assigned"]


@pytest.mark.parametrize("way", WAYS)
def test_the_dead_are_replaced(bench: Bench, way: type[Assigner]) -> None:
    """The first to check in leads, where somebody leads: so a leader dies."""
    group = Group(bench, way)
    group.join("a", "b")
    group.rounds()
    dead = group.members.pop("a")
    theirs = dict(dead.held)
    for partition_id in theirs:
        dead.commit(partition_id, 3)
    bench.expire("a")
    group.rounds()
    assert group.counts() == [8]
    for partition_id, held in theirs.items():
        present = state(group.any(), partition_id)
        assert (present.position, present.lease_epoch) == (3, held.lease_epoch + 1)
        with pytest.raises(StaleLease):
            dead.commit(partition_id, 4)
    dead.check_in()  # it wakes up, finds itself gone, and joins again
    group.members["a"] = dead
    group.rounds()
    assert group.counts() == [4, 4]


@pytest.mark.parametrize("way", WAYS)
def test_five_consumers_of_64_move_12_and_nothing_else(way: type[Assigner]) -> None:
    bench = InMemory()
    bench.partition_ids = list(range(64))
    group = Group(bench, way)
    group.join(*"abcd")
    group.rounds(3)
    assert group.counts() == [16] * 4
    before = group.held()
    group.join("e")
    group.rounds(3)
    assert Counter(group.counts()) == {13: 4, 12: 1}
    assert sum(len(set(before[each]) - set(group.held()[each])) for each in "abcd") == 12


def test_weights_share_by_largest_remainder() -> None:
    bench = InMemory()
    heavy = WorkStealing(bench.open(), "heavy", weight=2.0)
    light = WorkStealing(bench.open(), "light", weight=1.0)
    for each in (heavy, light):
        each.join()
    for _ in range(2):
        heavy.check_in()
        light.check_in()
    assert (len(heavy.held), len(light.held)) == (5, 3)


def test_only_what_has_events_is_leased_and_what_is_drained_goes_back() -> None:
    bench, backlogs, now = InMemory(), {1: 5, 2: 3}, [0.0]
    consumer = WorkStealing(
        bench.open(), "a", backlogs=lambda: backlogs, clock=lambda: now[0], pivots=lambda: 0.5
    )
    consumer.join()
    consumer.check_in()
    assert sorted(consumer.held) == [1, 2]
    del backlogs[2]
    now[0] = IDLE_SECONDS
    consumer.check_in()
    assert sorted(consumer.held) == [1, 2]  # a partition that is read as it fills keeps its lease
    now[0] += IDLE_SECONDS + 1
    consumer.check_in()
    assert sorted(consumer.held) == [1]


def test_the_smallest_backlog_is_given_back() -> None:
    bench = InMemory()
    backlogs = {partition_id: partition_id for partition_id in bench.partition_ids}
    first, second = (
        WorkStealing(bench.open(), name, backlogs=lambda: backlogs) for name in ("a", "b")
    )
    first.join()
    first.check_in()
    second.join()
    first.check_in()
    assert sorted(first.held) == bench.partition_ids[4:]


def test_pinned_consumers_take_what_is_theirs(bench: Bench) -> None:
    registries = [bench.open(), bench.open()]
    pinned = [Pinned(each, f"p{place}", place, 2) for place, each in enumerate(registries)]
    for each in pinned:
        each.join()
        each.check_in()
    assert sorted(pinned[0].held) == bench.partition_ids[::2]
    assert sorted(pinned[1].held) == bench.partition_ids[1::2]
    pinned[0].leave()
    pinned[1].check_in()
    assert sorted(pinned[1].held) == bench.partition_ids[1::2]
    with pytest.raises(InvalidArgument):
        Pinned(registries[0], "p", 2, 2)


def test_who_does_not_hold_commits_nothing() -> None:
    bench = InMemory()
    consumer = WorkStealing(bench.open(), "a")
    consumer.join()
    with pytest.raises(StaleLease):
        consumer.commit(bench.partition_ids[0], 1)
    assert consumer.registry.position(bench.partition_ids[0]) == 0


def test_a_decision_that_comes_too_late_is_not_followed() -> None:
    """Between its look and its decision the leader lost the term."""
    bench = InMemory()
    leader = Coordinated(bench.open(), "a")
    leader.join()

    def deposed(consumer: str, term: int, holders: Mapping[int, str]) -> Iterator[None]:
        raise StaleLease("the term is over")

    leader.registry.assign = deposed  # type: ignore[method-assign, assignment]
    leader.check_in()
    assert leader.held == {}
