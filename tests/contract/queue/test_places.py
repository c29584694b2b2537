"""Where the events of a range stand, as the dealer has seen it: what comes is what the log has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import log
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import merge_six
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, more, mutated, texts


def _by(own: Connection, size: int, times: int) -> list[queue.Delivery]:
    return [each for _ in range(times) for each in queue.receive(own, QUEUE, size)]


def a_cut_range(db: ContractDatabase, own: Connection) -> None:
    """The rest of a range of ten, after four of it, has six events."""
    filled(own, 20)
    assert texts(_by(own, 10, 1) + _by(own, 4, 1)) == [str(number) for number in range(1, 15)]
    assert texts(_by(own, 10, 1)) == [str(number) for number in range(15, 21)]


def a_cut_range_of_two_passes(db: ContractDatabase, own: Connection) -> None:
    """Of a range of four that is cut in the middle, one pass has sequenced the first half."""
    filled(own, 6)
    more(own, 2, start=7)
    assert texts(_by(own, 4, 1) + _by(own, 2, 1)) == [str(number) for number in range(1, 7)]
    assert texts(_by(own, 2, 1)) == ["7", "8"]


def merged(size: int) -> Callable[[ContractDatabase, Connection], None]:
    """Two passes of three events each were merged in the index of the log."""

    def scenario(db: ContractDatabase, own: Connection) -> None:
        filled(own, 3)
        more(own, 3, start=4)
        merge_six(db)
        found = {each.event.sequence: each.event for each in _by(own, size, 6 // size)}
        assert [*found.values()] == log.fetch(own, TOPIC, 0, 1)

    return scenario


def several_passes(size: int) -> Callable[[ContractDatabase, Connection], None]:
    """Passes of four, three and three events: some ranges are in two of them."""

    def scenario(db: ContractDatabase, own: Connection) -> None:
        filled(own, 4, partitions=2)
        for start in (5, 8):
            more(own, 3, partitions=2, start=start)
        found = [each.event for each in _by(own, size, 20)]
        for partition in range(2):
            mine = [event for event in found if event.partition == partition]
            assert mine == log.fetch(own, TOPIC, partition, 1)

    return scenario


SCENARIOS = {
    "a cut range": a_cut_range,
    "a cut range of two passes": a_cut_range_of_two_passes,
    "merged, by 1": merged(1),
    "merged, by 3": merged(3),
    "several passes, by 1": several_passes(1),
    "several passes, by 2": several_passes(2),
    "several passes, by 7": several_passes(7),
}
_TIMES = ("ranges_of", "WHERE n.sequenced_ats IS NULL", "")
MUTANTS = {
    "a cut range": (
        *("receive", "ELSIF cardinality(ids) = one.last_sequence - one.first_sequence + 1 THEN"),
        "ELSIF ids IS NOT NULL THEN",
    ),
    "a cut range of two passes": (
        *("ranges_of", "WHERE LEAST(s + range_size - 1, i.until) <= i.last"),
        "",
    ),
    "merged, by 1": _TIMES,
    "merged, by 3": _TIMES,
}


@proves("D7, D11 in the plain calls of queues")
@pytest.mark.parametrize("how", SCENARIOS)
def test_what_comes_is_what_the_log_has(db: ContractDatabase, own: Connection, how: str) -> None:
    SCENARIOS[how](db, own)


@proves("D7, D11 in the plain calls of queues", guard="the length of a range, the times of events")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", MUTANTS)
def test_without_a_look_at_the_range_it_is_not(
    db: ContractDatabase, own: Connection, how: str
) -> None:
    """Mutants: a range that was cut, and rows that were merged, are taken for whole ones."""
    function, old, new = MUTANTS[how]
    mutated(db, {"postgres": (function, [(old, new)])})
    with pytest.raises(AssertionError):
        SCENARIOS[how](db, own)
