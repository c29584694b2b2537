"""Sensor `sealed`: reports the hours as the database has them, sealed and archived.

It follows the changes of all topics in the order of their time, a bounded number in a tick, so the
first look at a long log ends over several ticks and a later one costs the same however long the log
is.  What Dagster shows already is left out.  So it is the reconciler too: an hour that a command or
a daemon has archived becomes a materialization without a run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

VERSION = 1
MOST_CHANGES = 1_000
#: The rest of a long backlog is looked at by the next ticks.
MOST_HOURS = 50
#: Dagster records each event alone, which takes most of the second that a tick has.
MOST_EVENTS = 20
MOST_SECONDS = 0.4
#: A change can be committed so much later than its time says.
OVERLAP = dt.timedelta(seconds=60)


@dataclass
class Look:
    """One tick: what was looked at, and how far that is."""

    after: dt.datetime
    #: The changes that were looked at and may be seen again, because of the overlap.
    seen: dict[str, str]
    events: list[Any] = field(default_factory=list)

    def is_known(self, changed: ChangedHour) -> bool:
        """Whether an earlier tick has looked at this very change."""
        return self.seen.get(_name(changed)) == changed.changed_at.isoformat()

    def passed(self, changed: ChangedHour) -> None:
        """Remember a change."""
        self.seen[_name(changed)] = changed.changed_at.isoformat()

    def dump(self, topics: str) -> str:
        """The cursor."""
        recent = (self.after - OVERLAP).isoformat()
        seen = {name: at for name, at in self.seen.items() if at > recent}
        return dump_cursor(VERSION, topics=topics, after=self.after.isoformat(), seen=seen)


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
        held = cursor_of(context, VERSION)
        if held.get("topics") != topics:
            held = {}
        after = dt.datetime.fromisoformat(held["after"]) if "after" in held else BEGINNING
        look = Look(after, dict(held.get("seen", {})))
        with database.connect() as connection:
            changes = changed_hours(connection, look.after, MOST_CHANGES)
            shown = Shown(context, changes[:MOST_HOURS])
            end = look.after
            for changed in _in_time(changes):
                if len(look.events) >= MOST_EVENTS:
                    break
                if changed.topic in known and not look.is_known(changed):
                    with others_go_on(context, changed.topic):
                        look.events += _events(shown, connection, catalogue, changed)
                look.passed(changed)
                end = changed.changed_at
        if changes and end == changes[-1].changed_at and _is_last_page(changes):
            end = max(look.after, end - OVERLAP)
        look.after = end
        return result([], look.dump(topics), "no hour has changed", asset_events=look.events)

    return sensor


def topics_digest(topics: Iterable[str]) -> str:
    """What changes in the cursor when there are other topics."""
    return hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]


def _name(changed: ChangedHour) -> str:
    return f"{changed.topic}@{hour_name(changed.hour)}"


def _is_last_page(changes: list[ChangedHour]) -> bool:
    return sum(each.changes for each in changes) < MOST_CHANGES


def _in_time(changes: list[ChangedHour]) -> Iterator[ChangedHour]:
    """As many as a tick may look at; those that begin by Dagster's own clock later wait."""
    deadline = time.monotonic() + MOST_SECONDS
    now = dt.datetime.now(dt.UTC)
    for number, changed in enumerate(changes):
        if changed.hour > now or number >= MOST_HOURS or time.monotonic() > deadline:
            return
        yield changed


def _events(
    shown: Shown, connection: Any, catalogue: Catalogue, changed: ChangedHour
) -> Iterator[dg.AssetMaterialization]:
    """What Dagster does not show yet of an hour."""
    name = hour_name(changed.hour)
    epochs = epochs_of_hour(connection, changed.topic, changed.hour)
    events = [sealed_event(catalogue, changed.topic, name, epochs)]
    if catalogue.policies.of_topic(changed.topic).archive:
        events.append(archive_event(catalogue, changed.topic, name, epochs))
    for event in events:
        # Of an hour that Dagster shows as archived, an incomplete copy now is told as well.
        if event.tags[DATA_VERSION] != shown.version(event.asset_key, changed.topic, name):
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
