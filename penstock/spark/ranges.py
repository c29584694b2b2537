"""Ranges of sequences, and how they are cut into tasks.  Arithmetic only: the log has no gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import LogBehind

#: A task costs as much processor time as reading so many events, so smaller ranges share one.
_WORTH_A_TASK = 10_000
#: Cold ranges are packed into tasks of about so many events: 128 MB of 256 bytes each.
COLD_EVENTS_PER_TASK = 500_000


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The events ``first`` to ``last`` of one partition, both included.

    The partition's id goes with it: the topic's address may become another topic's.  A cold range
    was not in the database when it was planned.
    """

    partition: int
    partition_id: int
    first: int
    last: int
    is_cold: bool = False

    @property
    def count(self) -> int:
        """How many events it has."""
        return self.last - self.first + 1


def require_whole(source: SourceRange, next_sequence: int) -> None:
    """LogBehind when a range that was read ends too early, in the database or in the archive."""
    if next_sequence <= source.last:
        raise LogBehind(
            f"partition {source.partition} ends before sequence {next_sequence} now, and had"
            f" {source.last} when this read was planned",
            hint="the log was restored to an earlier state; make the data frame again",
        )


def cut(
    ranges: Iterable[SourceRange], events_per_task: int, most: int | None
) -> list[list[SourceRange]]:
    """The ranges as tasks of at most ``events_per_task`` events each; cold ones are not cut.

    Small ranges share a task: a micro-batch of a few events of many partitions is one task.  With
    ``most``, there are at most so many tasks, whatever size that gives them.
    """
    whole = [each for each in ranges if each.count > 0]
    total = sum(each.count for each in whole)
    if most is not None and total > events_per_task * most:
        events_per_task = -(-total // most)
    pieces = [piece for each in whole for piece in _pieces(each, events_per_task)]
    tasks = _joined(pieces, min(events_per_task, _WORTH_A_TASK))
    return tasks if most is None or len(tasks) <= most else _packed(pieces, most)


def _joined(pieces: list[SourceRange], size: int) -> list[list[SourceRange]]:
    """Pieces that follow each other, in tasks of at most so many events; cold ones in larger."""
    tasks: list[list[SourceRange]] = []
    taken = 0
    for piece in pieces:
        taken += piece.count
        if tasks and taken <= (COLD_EVENTS_PER_TASK if piece.is_cold else size):
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
            taken = piece.count
    return tasks


def _pieces(source: SourceRange, size: int) -> Iterable[SourceRange]:
    """Pieces of nearly the same size: a last one of three events would cost a task too."""
    if source.is_cold:
        yield source
        return
    count = -(-source.count // size)
    for number in range(count):
        yield SourceRange(
            source.partition,
            source.partition_id,
            source.first + source.count * number // count,
            source.first + source.count * (number + 1) // count - 1,
        )


def _packed(pieces: list[SourceRange], most: int) -> list[list[SourceRange]]:
    """The largest first, each to the task that has least, so that the tasks end together."""
    tasks: list[list[SourceRange]] = [[] for _ in range(most)]
    sizes = [0] * most
    for piece in sorted(pieces, key=lambda each: -each.count):
        place = sizes.index(min(sizes))
        tasks[place].append(piece)
        sizes[place] += piece.count
    return tasks


def shared(limit: int, lags: Mapping[int, int]) -> dict[int, int]:
    """How many of ``limit`` events each lagging partition may read now.

    Each partition gets its part of the whole lag by largest remainder, and at least one event while
    the limit allows it, so that no partition waits for a larger one.
    """
    lagging = {partition: lag for partition, lag in lags.items() if lag > 0}
    total = sum(lagging.values())
    if total <= limit:
        return lagging
    one_each = sorted(lagging, key=lambda each: (-lagging[each], each))[:limit]
    rest = limit - len(one_each)
    further = {each: lagging[each] - 1 for each in one_each}
    open_lag = sum(further.values())
    if not rest or not open_lag:
        return dict.fromkeys(one_each, 1)
    quotas = {each: divmod(rest * further[each], open_lag) for each in one_each}
    left = rest - sum(whole for whole, _ in quotas.values())
    by_remainder = sorted(one_each, key=lambda each: (-quotas[each][1], each))
    extra = set(by_remainder[:left])
    return {each: 1 + quotas[each][0] + (each in extra) for each in one_each}
