"""How ranges are cut into tasks, and how a limit is shared among partitions."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, strategies as st

from penstock.spark.ranges import SourceRange, cut, shared

_LENGTHS = st.lists(st.integers(0, 500), min_size=1, max_size=8)


def _ranges(lengths: list[int]) -> list[SourceRange]:
    return [SourceRange(at, 65_536 + at, 11, 10 + length) for at, length in enumerate(lengths)]


def _events(ranges: list[SourceRange]) -> list[tuple[int, int]]:
    return [(each.partition, n) for each in ranges for n in range(each.first, each.last + 1)]


@given(_LENGTHS, st.integers(1, 200), st.none() | st.integers(1, 6))
def test_every_event_is_in_exactly_one_task(
    lengths: list[int], size: int, most: int | None
) -> None:
    tasks = cut(_ranges(lengths), size, most)
    assert sorted(_events([piece for task in tasks for piece in task])) == _events(_ranges(lengths))
    assert most is None or len(tasks) <= most
    if most is None:
        assert all(sum(piece.count for piece in task) <= size for task in tasks)
    assert all(piece.count > 0 for task in tasks for piece in task)


def test_tasks_of_one_partition_are_of_one_size() -> None:
    (tasks,) = ([each[0].count for each in cut(_ranges([1_003]), 500, None)],)
    assert tasks == [334, 334, 335]


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    """A micro-batch of a few events of each of 16 partitions is one task, not 16."""
    assert cut(_ranges([3] * 16), 100_000, None) == [_ranges([3] * 16)]
    tasks = cut(_ranges([6_000, 4_000, 1, 10_001, 5]), 100_000, None)
    assert [[piece.count for piece in task] for task in tasks] == [
        [6_000, 4_000],
        [1],
        [10_001],
        [5],
    ]
    cold = [replace(each, is_cold=True) for each in _ranges([200_000] * 3)]
    hot = SourceRange(9, 9, 1, 5)
    assert cut([*cold, hot], 100_000, None) == [cold[:2], cold[2:], [hot]]


def test_a_limit_of_connections_shares_the_events_evenly() -> None:
    tasks = cut(_ranges([1_000, 10, 10, 10]), 100, 2)
    assert sorted(sum(piece.count for piece in task) for task in tasks) == [510, 520]


@given(st.integers(1, 300), st.dictionaries(st.integers(0, 9), st.integers(-3, 200)))
def test_a_limit_is_used_up_and_no_partition_gets_more_than_it_has(
    limit: int, lags: dict[int, int]
) -> None:
    found = shared(limit, lags)
    lagging = {each: lag for each, lag in lags.items() if lag > 0}
    assert sum(found.values()) == min(limit, sum(lagging.values()))
    assert all(0 < count <= lagging[each] for each, count in found.items())
    if limit >= len(lagging):
        assert found.keys() == lagging.keys()


def test_the_rest_of_a_limit_goes_by_largest_remainder() -> None:
    assert shared(10, {0: 600, 1: 300, 2: 100}) == {0: 5, 1: 3, 2: 2}
    assert shared(2, {0: 5, 1: 7, 2: 6}) == {1: 1, 2: 1}
    rng = random.Random(4)
    lags = {each: rng.randint(1, 1_000) for each in range(64)}
    assert sum(shared(100, lags).values()) == 100
