"""Positions that were seen outside the database, compared with a log that was restored.

A restored copy of the whole database cannot be told from the original by looking at it.  So sinks,
archives and clients that keep positions elsewhere report them before they go on.  A position beyond
the log stops its partition until an operator reconciles the restore.  The partition stops for all
readers when the reporting login may operate the topic.  Otherwise it stops only for the
subscription that the report is made for.

A position names its partition by id, because another topic may get the address later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.database import call
from penstock.errors import LogBehind, TopicNotFound
from penstock.records import Lease
from penstock.topics.partition_ids import number_of, topic_of


@dataclass(frozen=True, slots=True)
class Seen:
    """The last sequence of a partition that was seen outside, and its history."""

    sequence: int
    history: int


@dataclass(frozen=True, slots=True)
class PositionReport:
    """What the log returns for a reported position.

    When its history is not the reporter's, the reporter has to read its state again.
    """

    stopped: bool
    high_watermark: int
    history: int


def report_position(
    connection: Any,
    partition_id: int,
    sequence: int,
    *,
    history: int,
    source: str,
    subscription: str | None = None,
) -> PositionReport:
    """Tell the log what a sink, an archive or a client has seen of a partition.

    TopicNotFound when the topic is gone, or when the login may not operate it and the subscription
    does not read it.
    """
    seen = {partition_id: Seen(sequence, history)}
    return report_positions(connection, seen, source, subscription)[partition_id]


def report_positions(
    connection: Any, seen: Mapping[int, Seen], source: str, subscription: str | None = None
) -> dict[int, PositionReport]:
    """The same for several partitions, by their ids, in one call."""
    found = _reports(connection, seen, source, subscription)
    missing = sorted(seen.keys() - found.keys())
    if missing:
        raise TopicNotFound(
            f"there is no partition with the id {missing[0]}",
            hint="its topic was deleted, or this login may not operate it; in that case name a "
            "subscription that reads the topic",
        )
    return found


def require_log(
    connection: Any, seen: Mapping[int, Seen], source: str, subscription: str | None = None
) -> None:
    """Report what was seen.  LogBehind when the log does not reach it; the partition is stopped."""
    _refuse_stopped(seen, report_positions(connection, seen, source, subscription), source)


def tell(
    connection: Any, seen: Mapping[int, Seen], source: str, subscription: str | None = None
) -> None:
    """Report what was seen, as far as this login may: what is beyond the log stops there."""
    _reports(connection, seen, source, subscription)


def require_leases(connection: Any, known: Iterable[Lease], source: str, subscription: str) -> None:
    """The same for the positions of leases, except topics that are gone or no longer read."""
    seen = {lease.partition_id: Seen(lease.position, lease.history) for lease in known}
    _refuse_stopped(seen, _reports(connection, seen, source, subscription), source)


def _reports(
    connection: Any, seen: Mapping[int, Seen], source: str, subscription: str | None
) -> dict[int, PositionReport]:
    if not seen:
        return {}
    rows = call(
        connection,
        "report_positions",
        partition_ids=list(seen),
        sequences=[place.sequence for place in seen.values()],
        histories=[place.history for place in seen.values()],
        source=source,
        subscription=subscription,
    )
    return {partition_id: PositionReport(bool(row[0]), *row[1:]) for partition_id, *row in rows}


def _refuse_stopped(
    seen: Mapping[int, Seen], reports: Mapping[int, PositionReport], source: str
) -> None:
    behind = [
        f"partition {number_of(partition_id)} of topic {topic_of(partition_id)} ends at "
        f"{report.high_watermark} in history {report.history}, not at "
        f"{seen[partition_id].sequence} in history {seen[partition_id].history}"
        for partition_id, report in sorted(reports.items())
        if report.stopped
    ]
    if behind:
        raise LogBehind(
            f"the log ends before what {source} has seen: {'; '.join(behind)}",
            hint="a restore lost commits: look at `penstock restore status`, then open the next "
            "history by `penstock restore reconcile`",
        )
