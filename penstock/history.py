"""Positions that were seen outside of the database, against a log that a restore has put behind.

A copy of the whole database looks like itself from inside.  Whoever keeps positions elsewhere, a
sink, an archive or a client, reports them before going on: one that lies beyond the log stops its
partition until the restore is reconciled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.database import call
from penstock.errors import LogBehind
from penstock.records import Lease


@dataclass(frozen=True, slots=True)
class Seen:
    """The last sequence of a partition that somebody has seen, and in which history."""

    sequence: int
    history: int


@dataclass(frozen=True, slots=True)
class Report:
    """What the log says to a reported position; another history than the reporter's: look anew."""

    stopped: bool
    high_watermark: int
    history: int


def report_position(
    connection: Any, topic: str, partition: int, sequence: int, *, history: int, source: str
) -> Report:
    """Tell the log what a sink, an archive or a client has seen of a partition."""
    rows = call(
        connection,
        "report_position",
        topic=topic,
        partition=partition,
        sequence=sequence,
        history=history,
        source=source,
    )
    return Report(*rows[0])


def require_log(connection: Any, topic: str, seen: Mapping[int, Seen], source: str) -> None:
    """Report what was seen of a topic's partitions; LogBehind when the log does not reach it.

    One call, and one more for each partition that is behind: that one is stopped for everybody.
    """
    beyond = seen if len(seen) == 1 else _beyond(connection, topic, seen)
    behind = []
    for partition, place in sorted(beyond.items()):
        report = report_position(
            connection, topic, partition, place.sequence, history=place.history, source=source
        )
        if report.stopped:
            behind.append(
                f"partition {partition} ends at {report.high_watermark} in history "
                f"{report.history}, not at {place.sequence} in history {place.history}"
            )
    if behind:
        raise LogBehind(
            f"the log of {topic} is behind what {source} has seen: {'; '.join(behind)}",
            hint="a restore lost commits: look at `penstock restore status`, then open the next "
            "history by `penstock restore reconcile`",
        )


def require_leases(connection: Any, known: Iterable[Lease], source: str) -> None:
    """The same for the positions of leases."""
    topics: dict[str, dict[int, Seen]] = {}
    for lease in known:
        topics.setdefault(lease.topic, {})[lease.partition] = Seen(lease.position, lease.history)
    for topic, seen in topics.items():
        require_log(connection, topic, seen, source)


def _beyond(connection: Any, topic: str, seen: Mapping[int, Seen]) -> dict[int, Seen]:
    if not seen:
        return {}
    rows = call(connection, "high_watermarks", topic=topic)
    ends = {partition: (history, watermark) for partition, _, watermark, history in rows}
    return {
        partition: place
        for partition, place in seen.items()
        if (place.history, place.sequence) > ends.get(partition, (0, 0))
    }
