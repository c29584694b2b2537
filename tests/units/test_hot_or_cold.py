"""Where the database's part of a partition begins."""

from __future__ import annotations

import pytest

from penstock.archive.hot_or_cold import LowSequences
from penstock.records import PartitionRange

#: Two partitions; the database has the first one from sequence 21 on, the other one whole.
KNOWN = [PartitionRange(0, 21, 30, 1, 65536), PartitionRange(1, 1, 30, 1, 65537)]


@pytest.mark.parametrize(
    ("partition_id", "wanted", "cold", "hot"),
    [
        (65536, (1, 20), 20, 0),
        (65536, (15, 25), 6, 5),
        (65536, (20, 20), 1, 0),
        (65536, (21, 21), 0, 1),
        (65536, (30, 40), 0, 11),
        (65536, (20, 19), 0, 0),
        (65536, (25, 20), 0, 0),
        (65537, (1, 20), 0, 20),
        (7, (1, 20), 0, 20),
    ],
)
def test_a_range_is_cut_at_the_low_sequence(
    partition_id: int, wanted: tuple[int, int], cold: int, hot: int
) -> None:
    """Both parts together are the range, and each sequence of it says the same as its part."""
    low, whole = LowSequences(KNOWN), range(wanted[0], wanted[1] + 1)
    found = low.cut(partition_id, whole)
    assert (len(found.cold), len(found.hot)) == (cold, hot)
    assert [*found.cold, *found.hot] == list(whole)
    assert [n for n in whole if low.is_cold(partition_id, n)] == list(found.cold)
