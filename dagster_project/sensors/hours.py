"""Sensor `sealed`: reports the hours as the database has them, sealed and archived.

It follows the changes of all topics in the order of their time, a bounded number in a tick, so the
first look at a long log ends over several ticks and a later one costs the same however long the log
is.  What Dagster shows already is left out.  So it is the reconciler too: an hour that a command or
a daemon has archived becomes a materialization without a run.

A change can be committed long after its time, and after a failover the clock can be behind.  So
every change is looked at twice: at once, and again when it is an hour old.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_project.assets.epochs import archive_event, sealed_event
from dagster_project.catalogue import Catalogue
from dagster_project.common import DATA_VERSION, hour_name
from dagster_project.triggers import (
    cursor_of,
    dump_cursor,
    others_go_on,
    result,
    sense_while_up,
)
from ops.hours import BEGINNING, ChangedHour, changed_hours, epochs_of_hour
from resources.database import DatabaseResource

#: 2: the keys of assets have the name of their topic, so all hours are reported once more.
VERSION = 2
MOST_CHANGES = 1_000
#: The rest of a long backlog is looked at by the next ticks.
MOST_HOURS = 50
#: Dagster records each event alone, which takes most of the second that a tick has.
MOST_EVENTS = 20
MOST_SECONDS = 0.4
#: A change can be committed so much later than its time says, and is told in the next tick.
OVERLAP = dt.timedelta(seconds=60)
#: It can be committed so much later still, and is told by the second look.
LATE = dt.timedelta(hours=1)


@dataclass
class Look:
    """How far both looks are."""

    after: dt.datetime
    #: The changes that were looked at and may be seen again, because of the overlap.
    seen: dict[str, str]
    #: How far the second look is.
    again: dt.datetime

    @classmethod
    def of(cls, held: Mapping[str, Any], topics: str) -> Look:
        """That of a cursor.  For other topics it begins anew."""
        late = dt.datetime.now(dt.UTC) - LATE
        if held.get("topics") != topics or "after" not in held:
            return cls(BEGINNING, {}, late)
        after, again = held["after"], held.get("again", late.isoformat())
        from_text = dt.datetime.fromisoformat
        return cls(from_text(after), dict(held.get("seen", {})), from_text(again))

    def follow(self, changes: Sequence[ChangedHour], report: HourReport) -> None:
        """The changes since the last tick."""
        end = self.after
        for changed in report.in_time(changes):
            if not self.is_known(changed):
                report.tell(changed)
            self.seen[_name(changed)] = changed.changed_at.isoformat()
            end = changed.changed_at
        if changes and end == changes[-1].changed_at and _is_last_page(changes):
            end = max(self.after, end - OVERLAP)
        self.after = end

    def follow_late(self, changes: Sequence[ChangedHour], report: HourReport) -> None:
        """Those that are old enough for the second look."""
        until = dt.datetime.now(dt.UTC) - LATE
        for changed in report.in_time([each for each in changes if each.changed_at <= until]):
            report.tell(changed)
            self.again = changed.changed_at

    def is_known(self, changed: ChangedHour) -> bool:
        """Whether an earlier tick has looked at this very change."""
        return self.seen.get(_name(changed)) == changed.changed_at.isoformat()

    def dump(self, topics: str) -> str:
        """The cursor."""
        recent = (self.after - OVERLAP).isoformat()
        seen = {name: at for name, at in self.seen.items() if at > recent}
        times = {"after": self.after.isoformat(), "again": self.again.isoformat()}
        return dump_cursor(VERSION, topics=topics, seen=seen, **times)


def build(catalogue: Catalogue) -> dg.SensorDefinition:
    """The sensor of these topics."""
    # Of a topic that is new here the hours that are there already are looked at too.
    topics = topics_digest(catalogue.topics)
    known = frozenset(catalogue.topics)

    @dg.sensor(
        name=catalogue.named("sealed"),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports hours in which log epochs were sealed, and hours of which the "
        "database has verified every copy, whoever made it. It starts no run.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        look = Look.of(cursor_of(context, VERSION), topics)
        with database.connect() as connection:
            report = HourReport(context, connection, catalogue, known)
            look.follow(changed_hours(connection, look.after, MOST_CHANGES), report)
            look.follow_late(changed_hours(connection, look.again, MOST_CHANGES), report)
        return result([], look.dump(topics), "no hour has changed", asset_events=report.events)

    return sensor


def topics_digest(topics: Iterable[str]) -> str:
    """What changes in the cursor when there are other topics."""
    return hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]


def _name(changed: ChangedHour) -> str:
    return f"{changed.topic}@{hour_name(changed.hour)}"


def _is_last_page(changes: Sequence[ChangedHour]) -> bool:
    return sum(each.changes for each in changes) < MOST_CHANGES


class HourReport:
    """What a tick tells of hours: a bounded number, in a bounded time."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        connection: Any,
        catalogue: Catalogue,
        known: frozenset[str],
    ) -> None:
        self.events: list[dg.AssetMaterialization] = []
        self._context = context
        self._connection = connection
        self._catalogue = catalogue
        self._known = known
        self._shown = Shown(context, ())
        self._deadline = time.monotonic() + MOST_SECONDS

    def in_time(self, changes: Sequence[ChangedHour]) -> Iterator[ChangedHour]:
        """As many as a tick may look at; those that begin by Dagster's own clock later wait."""
        now = dt.datetime.now(dt.UTC)
        self._shown = Shown(self._context, changes[:MOST_HOURS])
        for changed in changes[:MOST_HOURS]:
            is_full = len(self.events) >= MOST_EVENTS or time.monotonic() > self._deadline
            if is_full or changed.hour > now:
                return
            yield changed

    def tell(self, changed: ChangedHour) -> None:
        """Take what Dagster does not show yet of an hour, if its topic is one of these."""
        if changed.topic in self._known:
            with others_go_on(self._context, changed.topic):
                self.events += self._news(changed)

    def _news(self, changed: ChangedHour) -> Iterator[dg.AssetMaterialization]:
        name, catalogue = hour_name(changed.hour), self._catalogue
        epochs = epochs_of_hour(self._connection, changed.topic, changed.hour)
        events = [sealed_event(catalogue, changed.topic, name, epochs)]
        if catalogue.policies.of_topic(changed.topic).archive:
            events.append(archive_event(catalogue, changed.topic, name, epochs))
        for event in events:
            # Of an hour that Dagster shows as archived, an incomplete copy now is told as well.
            if event.tags[DATA_VERSION] != self._shown.version(
                event.asset_key, changed.topic, name
            ):
                yield event


class Shown:
    """The data versions that Dagster shows of hours.  Each asset is looked up once in a tick.

    Dagster's storage is opened by the first look-up, so not in a tick that has nothing to report.
    """

    def __init__(self, context: dg.SensorEvaluationContext, changes: Sequence[ChangedHour]) -> None:
        self._context = context
        self._hours: dict[str, list[str]] = {}
        for each in changes:
            self._hours.setdefault(each.topic, []).append(hour_name(each.hour))
        self._found: dict[dg.AssetKey, Mapping[str, Mapping[str, str]]] = {}

    def version(self, key: dg.AssetKey, topic: str, hour: str) -> str | None:
        """That of an hour's last materialization."""
        if key not in self._found:
            self._found[key] = (
                self._context.instance.event_log_storage.get_latest_tags_by_partition(
                    key,
                    dg.DagsterEventType.ASSET_MATERIALIZATION,
                    [DATA_VERSION],
                    asset_partitions=self._hours[topic],
                )
            )
        return self._found[key].get(hour, {}).get(DATA_VERSION)
