"""Sensor `backlog`: steps in when no daemon moves the log, and reports how far each log is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_project.assets.logs import (
    SEQUENCE,
    log_metadata,
    sequenced_metadata,
    watermarks_version,
)
from dagster_project.catalogue import NOT_ANSWERED, Catalogue
from dagster_project.checks import Verdicts
from dagster_project.common import DATA_VERSION, made_of, table
from dagster_project.naming import tag
from dagster_project.triggers import (
    WORK_TAG,
    SensorPauses,
    cursor_of,
    dump_cursor,
    failed_run,
    failed_step,
    is_running,
    others_go_on,
    result,
    sense_while_up,
)
from ops.lateness import of_queue, queue_names
from ops.policies.policy import follows
from ops.policies.settings import RelayPolicy
from ops.probes import RELAY
from penstock import log, subscriptions
from penstock.errors import TopicNotFound
from penstock.records import PartitionRange
from penstock.subscriptions import Lag
from penstock.topics import names
from resources.database import DatabaseResource

VERSION = 1
#: A tick looks at so many logs, reports so many events of them, and looks for so long; the next one
#: goes on.  Dagster needs a few milliseconds to record each event.
LOGS_AT_ONCE, EVENTS_AT_ONCE, MOST_SECONDS = 100, 200, 0.4


def build(catalogue: Catalogue, sequence: Any, relay: Any | None) -> dg.SensorDefinition:
    """The sensor of these topics and relays."""

    @dg.sensor(
        name=catalogue.named("backlog"),
        jobs=[sequence, *([relay] if relay else [])],
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run of `sequence`, or of one relay, when no daemon moves the log. "
        "Reports how far each log is, and when a relay has sent all there is, each with its "
        "checks. After a run that failed it waits, longer each time.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        held = cursor_of(context, VERSION)
        pauses = SensorPauses(held.get("failed"), time.time())
        policies = database.policies()
        with database.connect() as connection:
            verdicts = Verdicts(catalogue, context, connection)
            existing = frozenset(each.address for each in names.list_topics(connection))
            seen = held.get("seen", {})
            tick = _Tick(context, connection, catalogue, verdicts, pauses, seen, existing)
            events, at = tick.logs(held.get("at", 0))
            lags = subscriptions.lag(connection)
            requests: list[dg.RunRequest] = []
            if log.status(connection).unsequenced_age_seconds > policies.limits.unsequenced:
                requests += tick.sequence_requests(sequence.name)
            relays = catalogue.relays()
            may_send = bool(relays) and follows(connection, policies)
            # Not by the file, which may say another kind than the database has.
            queues = queue_names(connection) if relays else set()
            for policy in relays:
                own = [each for each in lags if each.subscription == policy.subscription]
                with others_go_on(context, policy.name):
                    is_queue = policy.subscription in queues
                    waiting = of_queue(connection, policy.subscription, own) if is_queue else own
                    limit = policies.limits.relay_lag
                    late = [each for each in waiting if each.lag_seconds > limit]
                    if may_send and any(each.holder is None for each in late):
                        requests += tick.relay_requests(policy)
                with others_go_on(context, policy.name):
                    events += tick.relay_events(policy, own)
        cursor = dump_cursor(VERSION, at=at, seen=tick.seen, failed=pauses.dump())
        blind = [] if catalogue.has_answered else [NOT_ANSWERED]
        if new := len(existing.difference(catalogue.topics)):
            blind.append(f"{new} topics are new: reload the code location to see them")
        said = "; ".join([*blind, *pauses.said]) or "no backlog"
        return result(requests, cursor, said, asset_events=events)

    return sensor


@dataclass(frozen=True, slots=True)
class _Tick:
    """A look at the logs and relays of a database; ``seen`` is what was reported, by asset."""

    context: dg.SensorEvaluationContext
    connection: Any
    catalogue: Catalogue
    verdicts: Verdicts
    pauses: SensorPauses
    seen: dict[str, str]
    existing: frozenset[str]

    def logs(self, at: int) -> tuple[list[Any], int]:
        """What is new of some logs from a place on, and where the next tick begins."""
        topics, deadline = self.catalogue.topics, time.monotonic() + MOST_SECONDS
        events: list[Any] = []
        for _ in topics[:LOGS_AT_ONCE]:
            if len(events) >= EVENTS_AT_ONCE or time.monotonic() > deadline:
                break
            topic, at = topics[at % len(topics)], (at + 1) % len(topics)
            if topic in self.existing:
                with others_go_on(self.context, topic):
                    events += self.log_events(topic)
        return events, at

    def is_new(self, key: dg.AssetKey, version: str) -> bool:
        """Whether this version of an asset was not reported."""
        return self.seen.get(key.to_user_string()) != _digest(version)

    def reported(self, key: dg.AssetKey, version: str) -> None:
        """Remember it."""
        self.seen[key.to_user_string()] = _digest(version)

    def log_events(self, topic: str) -> list[Any]:
        """How far a log is, without a run: as it is observed, and what of it is sequenced."""
        try:
            ranges = names.partition_ranges(self.connection, topic)
        except TopicNotFound:  # deleted just now
            return []
        version = watermarks_version(ranges)
        events: list[Any] = []
        log_version, tags = f"{version}/{_lows(ranges)}", {DATA_VERSION: version}
        key, sequenced = (self.catalogue.key(topic, name) for name in ("log", "sequenced"))
        if self.is_new(key, log_version):
            events.append(dg.AssetObservation(key, metadata=log_metadata(ranges), tags=tags))
        if self.is_new(sequenced, version):
            metadata = sequenced_metadata(ranges)
            events.append(dg.AssetMaterialization(sequenced, metadata=metadata, tags=tags))
            events += self.verdicts.of(sequenced, topic)
        self.reported(key, log_version)
        self.reported(sequenced, version)
        return events

    def sequence_requests(self, job: str) -> Iterator[dg.RunRequest]:
        """A run of `sequence`.  One that has sequenced has not failed: its check may have."""
        instance = self.context.instance
        if is_running(instance, job=job):
            self.pauses.said.append(f"a run of {job} is under way")
            return
        failed = failed_step(instance, job, self.catalogue.named(SEQUENCE))
        if not self.pauses.rests_after(job, failed):
            yield dg.RunRequest(job_name=job)

    def relay_requests(self, relay: RelayPolicy) -> Iterator[dg.RunRequest]:
        """A run of its own for a relay whose events wait while nobody holds them."""
        key = self.catalogue.relay_key(relay.name)
        work = tag(self.catalogue.named(f"relay-{key.path[-1]}"))
        if is_running(self.context.instance, work=work):
            self.pauses.said.append(f"a run of the relay {relay.name} is under way")
            return
        failed = failed_run(self.context.instance, work=work)
        if not self.pauses.rests_after(work, failed):
            job = self.catalogue.named("relay")
            yield dg.RunRequest(job_name=job, asset_selection=[key], tags={WORK_TAG: work})

    def relay_events(self, relay: RelayPolicy, lags: Sequence[Lag]) -> list[Any]:
        """That a relay has sent all there is, whoever sent it."""
        key = self.catalogue.relay_key(relay.name)
        if relay.topic not in self.existing:
            return []  # a run tells of it, where it was renamed
        sent = {each.partition: each.position for each in lags}
        if any(each.lag_events for each in lags) or not lags or not self.is_new(key, str(sent)):
            return []
        ranges = names.partition_ranges(self.connection, relay.topic)
        if sent != {each.partition: each.high_watermark for each in ranges}:
            return []  # more has come meanwhile: the next tick looks again
        rows = [(each.partition, each.position, each.holder or "nobody") for each in lags]
        metadata: dict[str, Any] = {
            "events waiting": 0,
            "positions": table(("partition", "position", "held by"), rows),
        }
        source = self.catalogue.key(relay.topic, "sequenced")
        tags = made_of({source: watermarks_version(ranges)})
        verdicts = [*self.verdicts.of(key, relay.name, RELAY)]
        self.reported(key, str(sent))
        return [dg.AssetMaterialization(key, metadata=metadata, tags=tags), *verdicts]


def _digest(version: str) -> str:
    return hashlib.sha256(version.encode()).hexdigest()[:16]


def _lows(ranges: Sequence[PartitionRange]) -> str:
    return ",".join(str(each.low_sequence) for each in ranges)
