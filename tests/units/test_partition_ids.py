"""A partition's id tells its topic and its number."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import integers

from penstock.topics.partition_ids import id_of, number_of, topic_of
from penstock.topics.validation import MAX_PARTITIONS


@given(integers(1, 2**40), integers(0, MAX_PARTITIONS - 1))
def test_both_parts_come_back(topic_id: int, partition: int) -> None:
    found = id_of(topic_id, partition)
    assert (topic_of(found), number_of(found)) == (topic_id, partition)


def test_it_is_the_id_that_the_database_makes() -> None:
    assert id_of(3, 5) == 3 * 65_536 + 5
