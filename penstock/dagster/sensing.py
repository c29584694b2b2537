"""The sensor factory: a run of an asset when events have arrived, with their range as its input.

How far it has come is the position of a subscription, so retention waits for it, and a lost storage
of Dagster loses nothing.  The position moves when a run has succeeded; the range of one that failed
is asked for again.  So each event is in one successful run, or in more than one if a run succeeded
and the sensor could not record it.

A run counts only for the place from which it was asked for.  A subscription that was reset, or made
anew, reads the same sequences again, and so does one of another topic or another database.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from penstock import database
from penstock.dagster.reading import EventRange, PenstockResource, SequenceRange
from penstock.errors import DatabaseUnavailable, InvalidArgument, TopicNotFound
from penstock.subscriptions import stream
from penstock.subscriptions.overview import Lag, describe_subscription, lag
from penstock.topics import names

#: The tag of a run that a sensor has asked for, and of which it waits for the end.
RUN_TAG = "penstock/events"
_VERSION = 2
#: A range whose run failed is asked for again after so long, doubled each time.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 60.0, 3_600.0


def on_events(
    asset: dg.AssetsDefinition,
    topic: str,
    *,
    name: str = "",
    subscription: str = "",
    max_events: int = 100_000,
    start: str = "earliest",
    interval_seconds: int = 30,
) -> dg.SensorDefinition:
    """A sensor that asks for a run of an asset when events of a topic have arrived.

    The asset takes ``config: EventRange``, and at most ``max_events`` in a run; one run at a time.
    The resource ``penstock`` is a `PenstockResource`.  The subscription is made at the first tick;
    ``start`` says where it begins.
    """
    if max_events < 1:
        raise InvalidArgument(f"{max_events} events cannot be read", hint="read 1 or more")
    name = name or f"{asset.key.to_python_identifier()}_on_events"
    source = _AssetTopic(asset, topic, name, subscription or name.replace("_", "-"), start)

    @dg.sensor(
        name=name,
        target=[asset],
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for `{asset.key.to_user_string()}` when events of {topic} have arrived.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, penstock: PenstockResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            with penstock.connect() as connection:
                return source.tick(context, connection, max_events)
        except (DatabaseUnavailable, TopicNotFound) as error:
            return dg.SkipReason(str(error))

    return sensor


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run was asked for, how often, and until when it is not asked for again.

    A range is the partition, its first and last sequence, and the mark of its `_Place`.
    """

    ranges: list[list[Any]]
    attempt: int
    not_before: float

    def next(self) -> _Asked:
        """The next attempt at it."""
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(self.attempt, 20))
        return _Asked(self.ranges, self.attempt + 1, time.time() + pause)

    def dump(self) -> str:
        """For a cursor."""
        return json.dumps(
            {"version": _VERSION, "asked": [self.ranges, self.attempt, self.not_before]}
        )

    @classmethod
    def load(cls, cursor: str | None) -> _Asked | None:
        """What the last tick has left; nothing when another version has written it."""
        try:
            found = json.loads(cursor or "{}")
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("version") != _VERSION:
            return None
        return cls(*found["asked"]) if found.get("asked") else None


_NOTHING = json.dumps({"version": _VERSION})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the subscription stands on a partition.

    The mark changes whenever the same sequences have to be read again: the subscription was made
    anew, the partition is another one, the log has a new history, or a person has sought.
    """

    lag: Lag
    partition_id: int
    mark: str


@dataclass(frozen=True, slots=True)
class _AssetTopic:
    """A topic for an asset."""

    asset: dg.AssetsDefinition
    topic: str
    sensor: str
    subscription: str
    start: str

    def tick(
        self, context: dg.SensorEvaluationContext, connection: Any, max_events: int
    ) -> dg.SensorResult:
        """Look after the run that was asked for; ask for the next one when it has succeeded."""
        stream.subscribe(connection, self.subscription, [self.topic], start=self.start)
        places = self._places(connection)
        asked = _Asked.load(context.cursor)
        if asked is not None:
            states = self._states(context.instance, asked)
            if any(not each.is_finished for each in states):
                return _skip(asked.dump(), "the run of the last events is under way")
            current = _current(asked, places)
            if any(each.is_success for each in states):
                self._advance(connection, places, current)
                places = self._places(connection)
            elif len(current) == len(asked.ranges):
                if time.time() < asked.not_before:
                    return _skip(asked.dump(), f"attempt {asked.attempt} failed; it waits")
                return self._ask(asked.next())
        ranges = _share([each.lag for each in places.values()], max_events)
        if not ranges:
            return _skip(_NOTHING, "no event has arrived")
        marked = [[*each, places[each[0]].mark] for each in ranges]
        return self._ask(_Asked(marked, 1, time.time() + _FIRST_PAUSE_SECONDS))

    def _places(self, connection: Any) -> dict[int, _Place]:
        """Where the subscription stands, by partition of the topic: it may read others too."""
        made = describe_subscription(connection, self.subscription).created_at.timestamp()
        parts = {each.partition: each for each in names.partition_ranges(connection, self.topic)}
        found = {}
        for each in lag(connection, self.subscription):
            part = parts.get(each.partition) if each.topic == self.topic else None
            if part is not None:
                mark = f"{made:.6f}/{part.partition_id}/{part.history}/{each.lease_epoch}"
                found[each.partition] = _Place(each, part.partition_id, mark)
        return found

    def _ask(self, asked: _Asked) -> dg.SensorResult:
        config = self._config(asked)
        op = {"config": config.model_dump()}
        request = dg.RunRequest(
            run_key=self._work(asked),
            run_config={"ops": {self.asset.op.name: op}},
            tags={RUN_TAG: self._work(asked)},
        )
        return dg.SensorResult(run_requests=[request], cursor=asked.dump())

    def _config(self, asked: _Asked) -> EventRange:
        ranges = [
            SequenceRange(partition=part, first=first, last=last)
            for part, first, last, _ in asked.ranges
        ]
        return EventRange(topic=self.topic, ranges=ranges)

    def _work(self, asked: _Asked) -> str:
        """What this attempt is called, in a tag of a run."""
        told = json.dumps([self.topic, sorted(asked.ranges)])
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        return f"{self.sensor}:{digest}:{asked.attempt}"

    def _states(self, instance: dg.DagsterInstance, asked: _Asked) -> Sequence[dg.DagsterRun]:
        """The runs of all attempts at this range: a person may have repeated an earlier one."""
        works = [
            self._work(_Asked(asked.ranges, number, 0.0)) for number in range(1, asked.attempt + 1)
        ]
        return instance.get_runs(dg.RunsFilter(tags={RUN_TAG: works}))

    def _advance(
        self, connection: Any, places: dict[int, _Place], ranges: Sequence[Sequence[Any]]
    ) -> None:
        """Move the position behind what has succeeded; retention may remove it then."""
        if ranges:
            done = [(places[part], last) for part, _, last, _ in ranges]
            database.call(
                connection,
                "mark_low_water",
                subscription=self.subscription,
                partition_ids=[place.partition_id for place, _ in done],
                lease_epochs=[place.lag.lease_epoch for place, _ in done],
                positions=[last for _, last in done],
            )


def _current(asked: _Asked, places: dict[int, _Place]) -> list[list[Any]]:
    """The ranges whose place nobody has changed since they were asked for."""
    marks = {part: place.mark for part, place in places.items()}
    return [each for each in asked.ranges if marks.get(each[0]) == each[3]]


def _skip(cursor: str, why: str) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=dg.SkipReason(why), cursor=cursor)


def _share(lags: Sequence[Lag], max_events: int) -> list[list[int]]:
    """The next range of each partition, shared out evenly: none waits for another's backlog."""
    waiting = [each for each in lags if each.lag_events > 0]
    longest = sorted(waiting, key=lambda each: -each.lag_seconds)[:max_events]
    ranges, room = [], max_events
    for done, each in enumerate(sorted(longest, key=lambda each: each.lag_events)):
        taken = min(each.lag_events, room // (len(longest) - done))
        ranges.append([each.partition, each.position + 1, each.position + taken])
        room -= taken
    return sorted(ranges)
