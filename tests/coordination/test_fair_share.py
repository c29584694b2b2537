"""The arithmetic of fair shares, as properties."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from penstock.leases import shares as fair_share

WEIGHTS = st.floats(0.001, 1000, allow_nan=False)
CONSUMERS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), WEIGHTS, max_size=12)
EQUAL = [(1, 1), (5, 16), (10, 3), (10, 4), (64, 5), (1024, 1000), (8, 3)]


def names(count: int) -> dict[str, float]:
    return {f"c{number:04}": 1.0 for number in range(count)}


class Board:
    """Partitions and their holders; consumers check in one after another, as on a registry."""

    def __init__(self, partitions: int, seed: int = 1) -> None:
        self.holders: dict[int, str | None] = dict.fromkeys(range(partitions))
        self.backlogs = dict.fromkeys(range(partitions), 5)
        self.random = random.Random(seed)
        self.moves = 0

    def round(self, weights: Mapping[str, float]) -> None:
        order = sorted(weights)
        self.random.shuffle(order)
        shares = fair_share.quotas(weights, len(self.holders))
        for consumer in order:
            for partition in fair_share.to_release(consumer, self.holders, shares, self.backlogs):
                self.holders[partition] = None
                self.moves += 1
            for partition in fair_share.to_acquire(
                consumer, self.holders, shares, self.random.random()
            ):
                assert self.holders[partition] not in weights, "a live lease was taken"
                self.holders[partition] = consumer

    def held(self) -> Counter[str]:
        return Counter(holder for holder in self.holders.values() if holder is not None)


@settings(max_examples=50, deadline=None)
@given(CONSUMERS, st.integers(0, 200))
def test_quotas_are_proportional_by_largest_remainder(
    weights: dict[str, float], partitions: int
) -> None:
    shares = fair_share.quotas(weights, partitions)
    assert sum(shares.values()) == (partitions if weights else 0)
    units = {name: round(weight * fair_share.UNITS) for name, weight in weights.items()}
    exact = {name: Fraction(each * partitions, sum(units.values())) for name, each in units.items()}
    for name, share in shares.items():
        assert share in {int(exact[name]), int(exact[name]) + 1}
    ups = [exact[name] - int(exact[name]) for name in shares if shares[name] > int(exact[name])]
    downs = [exact[name] - int(exact[name]) for name in shares if shares[name] == int(exact[name])]
    assert not ups or not downs or min(ups) >= max(downs)


@pytest.mark.parametrize(("partitions", "consumers"), EQUAL)
def test_all_are_held_after_two_rounds_and_then_nothing_moves(
    partitions: int, consumers: int
) -> None:
    board, weights = Board(partitions), names(consumers)
    board.round(dict(list(weights.items())[:1]))  # the first was alone for a moment
    board.moves = 0
    board.round(weights)
    board.round(weights)
    held = board.held()
    assert None not in board.holders.values()
    counts = [held[name] for name in weights]
    assert max(counts) - min(counts) <= 1
    before = dict(board.holders)
    board.moves = 0
    for _ in range(3):
        board.round(weights)
    assert (board.moves, board.holders) == (0, before)


def test_a_fifth_consumer_of_64_partitions_moves_exactly_12() -> None:
    board = Board(64)
    for _ in range(2):
        board.round(names(4))
    before = dict(board.holders)
    for _ in range(3):
        board.round(names(5))
    moved = [p for p in before if board.holders[p] != before[p]]
    assert (len(moved), board.moves) == (12, 12)
    assert {board.holders[p] for p in moved} == {"c0004"}


def test_sticky_moves_as_few_as_it_can() -> None:
    decided = fair_share.sticky(dict.fromkeys(range(64)), names(4))
    assert sorted(Counter(decided.values()).values()) == [16, 16, 16, 16]
    joined = fair_share.sticky(decided, names(5))
    assert sum(joined[p] != decided[p] for p in decided) == 12
    assert fair_share.sticky(joined, names(5)) == joined
    left = {name: 1.0 for name in names(5) if name != "c0002"}
    after = fair_share.sticky(joined, left)
    assert all(after[p] == joined[p] for p in joined if joined[p] in left)


def test_three_consumers_share_eight() -> None:
    assert fair_share.quotas(names(3), 8) == {"c0000": 3, "c0001": 3, "c0002": 2}
    assert fair_share.quotas({}, 8) == {}


def test_the_smallest_backlog_goes_first() -> None:
    holders: dict[int, str | None] = dict.fromkeys(range(4), "a")
    shares = {"a": 2, "b": 2}
    assert fair_share.to_release("a", holders, shares, {0: 9, 1: 1, 2: 5, 3: 2}) == [1, 3]
    # What is free serves who is short: nothing is given back for it.
    assert fair_share.to_release("a", holders | {4: None, 5: None}, shares, {}) == []


@given(st.sets(st.integers(0, 99)), st.integers(1, 7))
def test_pinned_consumers_cover_everything_once(partitions: set[int], places: int) -> None:
    taken = [p for place in range(places) for p in fair_share.pinned(partitions, place, places)]
    assert sorted(taken) == sorted(partitions)


class Step(NamedTuple):
    """Consumers that join, with weights, and how many leave."""

    join: dict[str, float]
    leave: int


STEPS = st.lists(st.builds(Step, CONSUMERS, st.integers(0, 5)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 64), STEPS, st.integers(0, 1000))
def test_whoever_joins_and_leaves(partitions: int, steps: list[Step], seed: int) -> None:
    board, weights = Board(partitions, seed), dict[str, float]()
    decided: dict[int, str] = {}
    for step in steps:
        weights |= step.join
        for name in sorted(weights)[: step.leave]:
            del weights[name]
        for _ in range(2):
            board.round(weights)
        decided = fair_share.sticky(decided or dict.fromkeys(range(partitions)), weights) or decided
        if weights:
            shares = fair_share.quotas(weights, partitions)
            for held in (board.held(), Counter(decided.values())):
                assert {name: held[name] for name in weights} == shares
            before = dict(board.holders)
            board.round(weights)
            assert board.holders == before
