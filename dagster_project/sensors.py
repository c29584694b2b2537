"""Sensors: new log epochs, missing copies, and a log that no daemon moves; they run by default."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.duties import Duties, sealed_event
from dagster_project.naming import epoch_name, epochs_name, slug, topic_key
from dagster_project.sequencing import log_metadata, watermarks_version
from dagster_project.topics import EPOCHS_PER_RUN
from dagster_project.triggers import (
    WORK_TAG,
    is_running,
    others_go_on,
    pause_after,
    result,
    sense_while_up,
)
from ops.policies.file import Policies, TopicPolicy
from ops.seal import copies_of, lacking, log_epochs
from penstock import log, subscriptions
from penstock.archive.copies import key_of
from penstock.errors import TopicNotFound
from penstock.records import LogEpoch
from penstock.topics import names
from resources.database import DatabaseResource
from resources.targets import ArchiveTargetResource

RUNNING = dg.DefaultSensorStatus.RUNNING

#: The rest of a long backlog is asked for by the next ticks.
MOST_REQUESTS = 8
#: Dagster slows down with many partitions; the database keeps every log epoch for ever.
KEEP_DROPPED_DAYS = 30

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"


def build(catalogue: Catalogue, duties: Duties) -> dg.Definitions:
    """The sensors that have something to do."""
    found = [_backlog(catalogue, duties)]
    if catalogue.topics:
        found.append(_sealed_epochs(catalogue, duties))
    if duties.archive:
        found.append(_missing_copies(catalogue, duties))
    return dg.Definitions(sensors=found)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How often a piece of work was asked for, and when it may be asked for again."""

    fingerprint: str
    count: int
    not_before: float

    @classmethod
    def next_of(cls, given: Any, fingerprint: str, now: float) -> Attempt | None:
        """The next attempt at this work, or None while the last one's pause lasts."""
        before = cls(*given) if given else None
        if before is None or before.fingerprint != fingerprint:
            return cls(fingerprint, 1, now + pause_after(1))
        if now < before.not_before:
            return None
        return cls(fingerprint, before.count + 1, now + pause_after(before.count + 1))

    def dump(self) -> list[Any]:
        """For a cursor."""
        return [self.fingerprint, self.count, self.not_before]


def _sealed_epochs(catalogue: Catalogue, duties: Duties) -> dg.SensorDefinition:
    @dg.sensor(
        name="sealed_epochs",
        jobs=[*duties.archive.values()] or None,
        minimum_interval_seconds=30,
        default_status=RUNNING,
        description="Makes every sealed log epoch a partition in Dagster, and asks for its "
        "archive. A run that failed is asked for again, with a growing pause.",
    )
    @sense_while_up
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        cursor: dict[str, Any] = json.loads(context.cursor or "{}")
        changes: list[Any] = []
        events: list[dg.AssetMaterialization] = []
        requests: list[dg.RunRequest] = []
        for topic in catalogue.topics:
            with others_go_on(context, topic):
                with database.connect() as connection:
                    found = _epochs(connection, topic, catalogue.policies)
                if found is None:
                    continue
                new, gone, order = _partitions(context, topic, found)
                due = [name for name in order if name in found.unarchived]
                requests += _archive_requests(context, topic, order, due, cursor)
                partitions = dg.DynamicPartitionsDefinition(name=epochs_name(topic))
                if new:
                    changes.append(partitions.build_add_request([*new]))
                    events += [sealed_event(topic, epoch) for epoch in new.values()]
                if gone:
                    changes.append(partitions.build_delete_request(gone))
        return result(
            requests,
            json.dumps(cursor),
            f"{len(new_keys(changes))} new log epochs, none to archive",
            dynamic_partitions_requests=changes,
            asset_events=events,
        )

    return sensor


def _partitions(
    context: dg.SensorEvaluationContext, topic: str, found: _Epochs
) -> tuple[dict[str, LogEpoch], list[str], list[str]]:
    """New log epochs, the keys that Dagster forgets, and the order of those that it shows."""
    kept = {epoch_name(key_of(epoch)): epoch for epoch in found.kept}
    present = context.instance.get_dynamic_partitions(epochs_name(topic))
    known = set(present)
    new = {name: epoch for name, epoch in kept.items() if name not in known}
    gone = [name for name in present if name not in kept]
    return new, gone, [*(name for name in present if name in kept), *new]


def new_keys(changes: Sequence[Any]) -> list[str]:
    """The partition keys that are added."""
    added = [each for each in changes if isinstance(each, dg.AddDynamicPartitionsRequest)]
    return [key for each in added for key in each.partition_keys]


@dataclass(frozen=True, slots=True)
class _Epochs:
    kept: list[LogEpoch]
    unarchived: set[str]


def _epochs(connection: Any, topic: str, policies: Policies) -> _Epochs | None:
    """A topic's log epochs that Dagster shows, and those that were never written to a target.

    A copy that was there and is gone is backfilled; the archive job does not make it again.
    """
    try:
        epochs = log_epochs(connection, topic)
        copies = copies_of(connection, topic)
    except TopicNotFound:
        return None
    recent = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=KEEP_DROPPED_DAYS)
    kept = [each for each in epochs if each.dropped_at is None or each.dropped_at > recent]
    wanted = set(policies.of_topic(topic).archive)
    written: dict[tuple[int, int], set[str]] = {}
    for copy in copies:
        written.setdefault((copy.partition, copy.log_epoch), set()).add(copy.target)
    unarchived = {
        epoch_name(key_of(epoch))
        for epoch in kept
        if epoch.dropped_at is None and not wanted <= written.get(key_of(epoch), set())
    }
    return _Epochs(kept, unarchived)


def _archive_requests(
    context: dg.SensorEvaluationContext,
    topic: str,
    order: Sequence[str],
    due: Sequence[str],
    cursor: dict[str, Any],
) -> Iterator[dg.RunRequest]:
    """Runs over neighbouring partitions; one lot at a time for each topic."""
    name = slug(topic)
    if not due:
        cursor.pop(name, None)
        return
    work = f"archive-{name}"[:63]
    if is_running(context.instance, work=work):
        return
    attempt = Attempt.next_of(cursor.get(name), due[0], time.time())
    if attempt is None:
        return
    cursor[name] = attempt.dump()
    for first, last in _ranges(order, due)[:MOST_REQUESTS]:
        yield dg.RunRequest(
            run_key=f"archive:{name}:{first}:{last}:{attempt.count}",
            job_name=f"archive_{name}",
            tags={WORK_TAG: work, RANGE_START: first, RANGE_END: last},
        )


def _ranges(order: Sequence[str], due: Sequence[str]) -> list[tuple[str, str]]:
    """The keys that are due as ranges of neighbours, none longer than one run takes."""
    place = {name: index for index, name in enumerate(order)}
    found: list[tuple[str, str, int]] = []
    for name in due:
        if found:
            first, last, length = found[-1]
            if place[name] == place[last] + 1 and length < EPOCHS_PER_RUN:
                found[-1] = (first, name, length + 1)
                continue
        found.append((name, name, 1))
    return [(first, last) for first, last, _ in found]


def _missing_copies(catalogue: Catalogue, duties: Duties) -> dg.SensorDefinition:
    archived = [each for each in catalogue.policies.topics.values() if each.placement]

    @dg.sensor(
        name="missing_copies",
        job=duties.backfill,
        minimum_interval_seconds=60,
        default_status=RUNNING,
        description="Looks whether the files of every recorded copy are there, and asks for the "
        "backfill of those that are gone, of what a run of the archive left behind, and of what a "
        "new target lacks and the database has dropped. A copy that is lost again is backfilled "
        "again.",
    )
    @sense_while_up
    def sensor(
        context: dg.SensorEvaluationContext,
        database: DatabaseResource,
        targets: ArchiveTargetResource,
    ) -> dg.SensorResult:
        from ops.backfill.missing import audit_files

        cursor: dict[str, Any] = json.loads(context.cursor or "{}")
        requests: list[dg.RunRequest] = []
        for policy in archived:
            topic = policy.topic
            for name in policy.archive:
                with others_go_on(context, f"{topic} on {name}"), suppress(TopicNotFound):
                    audit_files(database.url(), topic, targets.target(name))
            with others_go_on(context, topic), suppress(TopicNotFound):
                with database.connect() as connection:
                    lost = _lost(connection, policy)
                requests += _backfill_requests(context, topic, lost, cursor)
        return result(requests, json.dumps(cursor), "no copy is missing, or its backfill is on")

    return sensor


def _lost(connection: Any, policy: TopicPolicy) -> list[tuple[str, str]]:
    """The log epochs that lack copies which a backfill can make: partition key, and since when.

    Those that no run of the archive has brought yet are left to it, unless a copy was there and is
    gone, or the database has dropped them.
    """
    assert policy.placement is not None
    few = {key_of(each): each for each in lacking(connection, policy.topic, policy.placement)}
    lost = {
        epoch_name(key): copy.changed_at.isoformat()
        for copy in copies_of(connection, policy.topic)
        if (key := (copy.partition, copy.log_epoch)) in few
        and copy.state == "missing"
        and copy.target in policy.archive
    }
    for epoch in few.values():
        since = epoch.dropped_at or epoch.sealed_at
        if epoch.targets and since is not None:
            lost.setdefault(epoch_name(key_of(epoch)), since.isoformat())
    return sorted(lost.items())


def _backfill_requests(
    context: dg.SensorEvaluationContext,
    topic: str,
    lost: Sequence[tuple[str, str]],
    cursor: dict[str, Any],
) -> Iterator[dg.RunRequest]:
    """One run for all missing copies of a topic."""
    place = slug(topic)
    if not lost:
        cursor.pop(place, None)
        return
    work = hashlib.sha256(f"backfill:{place}".encode()).hexdigest()[:16]
    if is_running(context.instance, work=work):
        return
    # Since when each copy is missing is part of it: a copy that is lost a second time is new work.
    fingerprint = hashlib.sha256(json.dumps(sorted(lost)).encode()).hexdigest()[:16]
    attempt = Attempt.next_of(cursor.get(place), fingerprint, time.time())
    if attempt is None:
        return
    cursor[place] = attempt.dump()
    config = {"topic": topic, "target": ""}
    yield dg.RunRequest(
        run_key=f"backfill:{place}:{fingerprint}:{attempt.count}",
        job_name="backfill",
        run_config={"ops": {"backfill_copies": {"config": config}}},
        tags={WORK_TAG: work, "penstock/missing": f"{lost[0][0]}+{len(lost) - 1}"},
    )


def _backlog(catalogue: Catalogue, duties: Duties) -> dg.SensorDefinition:
    limits = catalogue.policies.limits
    relayed = {relay.subscription for relay in catalogue.policies.relays.values()}

    @dg.sensor(
        name="backlog",
        jobs=[duties.sequence, *filter(None, [duties.relay])],
        minimum_interval_seconds=30,
        default_status=RUNNING,
        description="Asks for a run of `sequence` or `relay` when no daemon moves the log, and "
        "records how far each log is.",
    )
    @sense_while_up
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        seen: dict[str, str] = json.loads(context.cursor or "{}")
        requests = []
        with database.connect() as connection:
            waiting = log.status(connection).unsequenced_age_seconds
            stuck = [
                each
                for each in subscriptions.lag(connection)
                if each.subscription in relayed
                and each.holder is None
                and each.lag_seconds > limits.relay_lag
            ]
            events = list(_observations(connection, catalogue.topics, seen))
        if waiting > limits.unsequenced and not is_running(context.instance, job="sequence"):
            requests.append(dg.RunRequest(job_name="sequence"))
        if stuck and not is_running(context.instance, job="relay"):
            requests.append(dg.RunRequest(job_name="relay"))
        return result(requests, json.dumps(seen), "no backlog", asset_events=events)

    return sensor


def _observations(
    connection: Any, topics: Sequence[str], seen: dict[str, str]
) -> Iterator[dg.AssetObservation]:
    """The logs that have grown since the last look, without a run for each."""
    existing = {each.address for each in names.list_topics(connection)}
    for topic in topics:
        if topic not in existing:
            continue
        try:
            ranges = names.describe_topic(connection, topic).partitions
        except TopicNotFound:  # deleted just now
            continue
        version = watermarks_version(ranges).value
        if seen.get(slug(topic)) != version:
            seen[slug(topic)] = version
            yield dg.AssetObservation(
                topic_key(topic, "log"),
                metadata=log_metadata(ranges),
                tags={"dagster/data_version": version},
            )
