"""What an audit proves of a log, from its events alone: no gap, no double, order in time.

It knows nothing of how sequences are given.  Readers give it batches of events in the order in
which they lie in the log.  It makes stretches of them: events whose sequences follow each other.
The stretches of a range have to cover it, each sequence once.

Order: an event is committed before it is numbered.  So if Y was numbered before X was created, Y
was committed before X was published, and X has to come after Y in their partition.  That holds for
every pair when (1) no event was numbered before it was created, and (2) the times of numbering
never fall along a partition.  This is what the columns of an event can show of the order per key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: So many faults of a partition are named; of the others it says that there are more.
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events with the sequences ``first`` to ``last``, each once and in order.

    The times are microseconds since 1970: when the first and the last one were numbered.
    ``early`` is the first sequence that was numbered before its event was created, ``back`` the
    first one that was numbered before the one before it; -1: none.
    """

    partition: int
    first: int
    last: int
    first_at: int
    last_at: int
    early: int = -1
    back: int = -1


def stretches(batch: pa.RecordBatch) -> Iterator[Stretch]:
    """The stretches of a batch, which has at least one row."""
    partitions, sequences = batch.column("partition"), batch.column("sequence")
    numbered = batch.column("sequenced_at").cast(pa.int64())
    created = batch.column("created_at").cast(pa.int64())
    is_early = pc.less(numbered, created).to_pylist()
    is_back = [False, *pc.less(numbered[1:], numbered[:-1]).to_pylist()]
    follows = pc.and_(
        pc.equal(pc.subtract(sequences[1:], sequences[:-1]), pa.scalar(1, pa.int64())),
        pc.equal(partitions[1:], partitions[:-1]),
    ).to_pylist()
    breaks = [0, *(n + 1 for n, each in enumerate(follows) if not each), batch.num_rows]
    for start, end in pairwise(breaks):
        begin = sequences[start].as_py()
        early = next((n for n in range(start, end) if is_early[n]), None)
        back = next((n for n in range(start + 1, end) if is_back[n]), None)
        yield Stretch(
            partitions[start].as_py(),
            begin,
            begin + end - start - 1,
            numbered[start].as_py(),
            numbered[end - 1].as_py(),
            -1 if early is None else begin + early - start,
            -1 if back is None else begin + back - start,
        )


def joined(found: Iterable[Stretch]) -> Iterator[Stretch]:
    """The same, with those that follow each other without a fault as one."""
    last: Stretch | None = None
    for each in found:
        if last is not None and _continues(last, each):
            last = Stretch(each.partition, last.first, each.last, last.first_at, each.last_at)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _continues(before: Stretch, after: Stretch) -> bool:
    is_next = (before.partition, before.last + 1) == (after.partition, after.first)
    is_whole = before.early == before.back == after.early == after.back == -1
    return is_next and is_whole and before.last_at <= after.first_at


def faults(found: Iterable[Stretch], first: int, last: int) -> list[str]:
    """What is wrong with the stretches of one partition, which have to be ``first`` to ``last``."""
    named: list[str] = []
    end, end_at = first - 1, -(2**63)
    for each in sorted(found, key=lambda stretch: (stretch.first, stretch.last)):
        if each.first > end + 1:
            named.append(f"the sequences {end + 1} to {each.first - 1} are missing")
        elif each.first <= end:
            named.append(f"the sequences {each.first} to {min(end, each.last)} are there twice")
        if each.back >= 0:
            named.append(f"sequence {each.back} was numbered before the one before it")
        elif each.first == end + 1 and each.first_at < end_at:
            named.append(f"sequence {each.first} was numbered before the one before it")
        if each.early >= 0:
            named.append(f"sequence {each.early} was numbered before its event was created")
        end, end_at = max(end, each.last), max(end_at, each.last_at)
    if end < last:
        named.append(f"the sequences {end + 1} to {last} are missing")
    elif end > last:
        named.append(f"there are sequences up to {end}, after the end {last}")
    return named


@dataclass(frozen=True, slots=True)
class Double:
    """One event under two sequences."""

    event_id: str
    partition: int
    sequence: int
    other_partition: int
    other_sequence: int

    def __str__(self) -> str:
        """In words."""
        return (
            f"the event {self.event_id} is at {self.partition}/{self.sequence} and at "
            f"{self.other_partition}/{self.other_sequence}"
        )


class SeenEvents:
    """The events that were read, to find one that comes twice: by its id and time of creation.

    The id alone does not tell: a publisher may give two events the same one.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[Double]:
        """Take the events of a batch; returns those that were there already."""
        columns: tuple[list[Any], ...] = (
            batch.column("event_id").to_pylist(),
            batch.column("created_at").cast(pa.int64()).to_pylist(),
            batch.column("partition").to_pylist(),
            batch.column("sequence").to_pylist(),
        )
        for event_id, created, *place in zip(*columns, strict=True):
            known = self._places.setdefault((event_id, created), (place[0], place[1]))
            if known != (place[0], place[1]):
                yield Double(event_id, *known, place[0], place[1])


def told(named: Sequence[str]) -> str:
    """The first faults, in one text."""
    more = len(named) - MOST_NAMED
    return "; ".join(named[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
