"""A partition's id: its topic's number and its own number in one integer.  It never changes."""

from __future__ import annotations

_BITS = 16


def id_of(topic_id: int, partition: int) -> int:
    """The id of a topic's partition: ``topic_id * 65,536 + partition``."""
    return topic_id << _BITS | partition


def topic_of(partition_id: int) -> int:
    """The number of the topic that the partition belongs to."""
    return partition_id >> _BITS


def number_of(partition_id: int) -> int:
    """The partition's number within its topic."""
    return partition_id & ((1 << _BITS) - 1)
