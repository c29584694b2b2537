"""The first page: topics, queues, and why something does not move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from consumers.gateway.pages.readings import Budget
from consumers.gateway.pages.visits import House, PageRoute, Visit
from penstock import database, log, subscriptions
from penstock.errors import PenstockError
from penstock.subscriptions import Lag, Subscription, queue
from penstock.subscriptions.dead_letters import counts
from penstock.topics import names
from penstock.topics.retention import retention_limits
from penstock.upkeep.pages import PageAnswer

#: Rows of a table; the next ones are a link away.
MOST_ROWS = 50
#: A rate is over so much time at most, and at least over the other.
_RATE_SECONDS = (1.0, 300.0)
_MOST_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class TopicReader:
    """A subscription of a topic, and how far behind it is."""

    name: str
    mode: str
    lag_events: int
    lag_seconds: float
    is_paused: bool


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """A topic in one row; what was not read in time is None."""

    topic: str
    partitions: int
    events: int | None = None
    high_watermark: int | None = None
    rate: float | None = None
    bytes: int | None = None
    readers: tuple[TopicReader, ...] | None = None


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue in one row; what was not read in time is None."""

    name: str
    is_paused: bool
    counted: queue.QueueStatistics | None = None
    dead: int | None = None
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PageOfRows:
    """A part of a long list, and after which name the next one begins; '' at the end."""

    rows: list[Any]
    next: str


def index(visit: Visit) -> PageAnswer:
    """Topics, queues and findings, in this order."""
    readings, under, after = visit.house.readings, visit.text("namespace"), visit.text("after")
    topics = visit.read(
        ("topics", under, after),
        lambda c: topic_rows(c, visit.house, readings.budget(), under, after),
    )
    queue_after = visit.text("queue_after")
    queues = visit.read(
        ("queues", queue_after), lambda c: queue_rows(c, readings.budget(), queue_after)
    )
    status = visit.read("status", log.status)
    return visit.show(
        "index.html",
        "Topics and queues",
        topics=topics,
        queues=queues,
        findings=visit.house.findings.read(),
        status=status,
        under=under,
    )


def part_of(found: Iterable[Any], after: str, name: str, most: int = MOST_ROWS) -> PageOfRows:
    """The rows whose names come after this one, and no more than fit a page."""
    ordered = sorted(
        (each for each in found if getattr(each, name) > after),
        key=lambda each: str(getattr(each, name)),
    )
    rows = ordered[:most]
    return PageOfRows(rows, getattr(rows[-1], name) if len(ordered) > most else "")


def topic_rows(connection: Any, house: House, budget: Budget, under: str, after: str) -> PageOfRows:
    """A page of topics with their readers."""
    found = part_of(names.list_topics(connection, under), after, "address")
    wanted = {each.address for each in found.rows}
    bytes_of = {each.topic: each.size for each in retention_limits(connection)}
    readers = _readers(connection, budget, wanted)
    rows = []
    for each in found.rows:
        if budget.is_over():
            rows.append(TopicFigures(each.address, each.partitions))
            continue
        ranges = names.partition_ranges(connection, each.address)
        total = sum(one.high_watermark for one in ranges)
        rows.append(
            TopicFigures(
                each.address,
                each.partitions,
                sum(one.high_watermark - one.low_sequence + 1 for one in ranges),
                total,
                _rate(house, each.address, total),
                bytes_of.get(each.address),
                None if readers is None else tuple(readers[each.address]),
            )
        )
    return PageOfRows(rows, found.next)


def _readers(
    connection: Any, budget: Budget, wanted: set[str]
) -> dict[str, list[TopicReader]] | None:
    """Who reads each of these topics; None when there was no time to read it."""
    found: dict[str, list[TopicReader]] = defaultdict(list)
    for each in subscriptions.list_subscriptions(connection):
        if wanted.isdisjoint(each.topics):
            continue
        if budget.is_over():
            return None
        by_topic: dict[str, list[Lag]] = defaultdict(list)
        for lag in subscriptions.lag(connection, each.name):
            by_topic[lag.topic].append(lag)
        for topic in wanted.intersection(each.topics):
            found[topic].append(_reader(each, by_topic[topic]))
    return found


def _reader(found: Subscription, lags: list[Lag]) -> TopicReader:
    return TopicReader(
        found.name,
        found.mode,
        sum(each.lag_events for each in lags),
        max((float(each.lag_seconds) for each in lags), default=0.0),
        found.paused_at is not None,
    )


def _rate(house: House, topic: str, total: int) -> float | None:
    """Events a second since the page looked before; None at the first look."""
    now, (shortest, longest) = house.readings.now(), _RATE_SECONDS
    at, before = house.seen.get(topic, (float("-inf"), 0))
    if now - at > longest or total < before:
        if len(house.seen) >= _MOST_SEEN:
            house.seen.clear()
        house.seen[topic] = now, total
        return None
    if now - at < shortest:
        return None
    return (total - before) / (now - at)


def queue_rows(connection: Any, budget: Budget, after: str) -> PageOfRows:
    """A page of queues with their counts."""
    listed = subscriptions.list_subscriptions(connection)
    found = part_of((each for each in listed if each.mode == "queue"), after, "name")
    return PageOfRows([_queue_row(connection, budget, each) for each in found.rows], found.next)


def _queue_row(connection: Any, budget: Budget, found: Subscription) -> QueueFigures:
    is_paused = found.paused_at is not None
    if not budget.is_over():
        try:
            return _counted(connection, found.name, is_paused=is_paused)
        except Exception as error:
            # It was deleted meanwhile, this login may not look into it, or it is too large to be
            # counted in time.  The others are shown all the same.
            if not isinstance(error, PenstockError) and not database.is_cancelled(error):
                raise
    return QueueFigures(found.name, is_paused)


def _counted(connection: Any, name: str, *, is_paused: bool) -> QueueFigures:
    counted = queue.statistics(connection, name)
    dead = sum(each.dead + each.parked for each in counts(connection, name))
    oldest = _oldest(connection, name) if counted.size else None
    return QueueFigures(name, is_paused, counted, dead, oldest)


def _oldest(connection: Any, name: str) -> float | None:
    """How long ago the first unfinished event of a queue was sequenced.

    Its position does not tell: what waits for a retry is copied, and the position goes on.
    """
    for each in queue.peek(connection, name, 1):
        return max(0.0, (datetime.now(UTC) - each.event.sequenced_at).total_seconds())
    return None


ROUTES = (PageRoute("/", index),)
