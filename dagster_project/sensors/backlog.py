"""Sensor `backlog`: steps in when no daemon moves the log, and reports how far each log is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project.assets.logs import log_metadata, sequenced_metadata, watermarks_version
from dagster_project.catalogue import Catalogue
from dagster_project.common import DATA_VERSION, made_of, table
from dagster_project.naming import tag
from dagster_project.triggers import (
    WORK_TAG,
    cursor_of,
    dump_cursor,
    is_running,
    others_go_on,
    result,
    sense_while_up,
)
from ops.policies.file import RelayPolicy
from penstock import log, subscriptions
from penstock.errors import TopicNotFound
from penstock.records import PartitionRange
from penstock.subscriptions import Lag
from penstock.topics import names
from resources.database import DatabaseResource

VERSION = 1
#: A tick looks at so many logs, the next one at the next.
LOGS_AT_ONCE = 100


def build(catalogue: Catalogue, sequence: Any, relay: Any | None) -> dg.SensorDefinition:
    """The sensor of these topics and relays."""

    @dg.sensor(
        name=catalogue.named("backlog"),
        jobs=[sequence, *([relay] if relay else [])],
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for a run of `sequence`, or of one relay, when no daemon moves the log. "
        "Reports how far each log is, and when a relay has sent all there is.",
    )
    @sense_while_up(catalogue.database)
    def sensor(context: dg.SensorEvaluationContext, database: DatabaseResource) -> dg.SensorResult:
        held = cursor_of(context, VERSION)
        seen: dict[str, str] = dict(held.get("seen", {}))
        limits = database.policies().limits
        with database.connect() as connection:
            waiting = log.status(connection).unsequenced_age_seconds
            lags = subscriptions.lag(connection)
            existing = {each.address for each in names.list_topics(connection)}
            topics, at = _some(catalogue.topics, int(held.get("at", 0)))
            events: list[Any] = []
            for topic in (each for each in topics if each in existing):
                with others_go_on(context, topic):
                    events += _log_events(connection, catalogue, topic, seen)
            requests = []
            if waiting > limits.unsequenced and not is_running(context.instance, job=sequence.name):
                requests.append(dg.RunRequest(job_name=sequence.name))
            for policy in catalogue.policies.relays.values():
                own = [each for each in lags if each.subscription == policy.subscription]
                requests += _relay_requests(context, catalogue, policy, own, limits.relay_lag)
                with others_go_on(context, policy.name):
                    events += _relay_events(connection, catalogue, policy, own, seen)
        cursor = dump_cursor(VERSION, at=at, seen=seen)
        return result(requests, cursor, "no backlog", asset_events=events)

    return sensor


def _some(topics: Sequence[str], at: int) -> tuple[list[str], int]:
    """The topics that this tick looks at, and where the next one begins."""
    if len(topics) <= LOGS_AT_ONCE:
        return [*topics], 0
    at %= len(topics)
    chosen = [*topics[at:], *topics[:at]][:LOGS_AT_ONCE]
    return chosen, (at + LOGS_AT_ONCE) % len(topics)


def _is_new(seen: dict[str, str], key: dg.AssetKey, version: str) -> bool:
    """Whether a version has not been reported; it is remembered."""
    name, digest = key.to_user_string(), hashlib.sha256(version.encode()).hexdigest()[:16]
    was, seen[name] = seen.get(name), digest
    return was != digest


def _log_events(
    connection: Any, catalogue: Catalogue, topic: str, seen: dict[str, str]
) -> Iterator[Any]:
    """How far a log is, without a run: as it is observed, and what of it is sequenced."""
    try:
        ranges = names.partition_ranges(connection, topic)
    except TopicNotFound:  # deleted just now
        return
    version = watermarks_version(ranges)
    key, tags = catalogue.key(topic, "log"), {DATA_VERSION: version}
    if _is_new(seen, key, f"{version}/{_lows(ranges)}"):
        yield dg.AssetObservation(key, metadata=log_metadata(ranges), tags=tags)
    key = catalogue.key(topic, "sequenced")
    if _is_new(seen, key, version):
        yield dg.AssetMaterialization(key, metadata=sequenced_metadata(ranges), tags=tags)


def _lows(ranges: Sequence[PartitionRange]) -> str:
    return ",".join(str(each.low_sequence) for each in ranges)


def _relay_requests(
    context: dg.SensorEvaluationContext,
    catalogue: Catalogue,
    relay: RelayPolicy,
    lags: Sequence[Lag],
    limit: float,
) -> Iterator[dg.RunRequest]:
    """A run of its own for a relay whose events wait while nobody holds them."""
    stuck = [each for each in lags if each.holder is None and each.lag_seconds > limit]
    key = catalogue.relay_key(relay.name)
    work = tag(catalogue.named(f"relay-{key.path[-1]}"))
    if stuck and not is_running(context.instance, work=work):
        yield dg.RunRequest(
            job_name=catalogue.named("relay"), asset_selection=[key], tags={WORK_TAG: work}
        )


def _relay_events(
    connection: Any,
    catalogue: Catalogue,
    relay: RelayPolicy,
    lags: Sequence[Lag],
    seen: dict[str, str],
) -> Iterator[dg.AssetMaterialization]:
    """That a relay has sent all there is, whoever sent it."""
    if not lags or any(each.lag_events for each in lags):
        return
    key = catalogue.relay_key(relay.name)
    sent = {each.partition: each.position for each in lags}
    if not _is_new(seen, key, str(sent)):
        return
    ranges = names.partition_ranges(connection, relay.topic)
    if sent != {each.partition: each.high_watermark for each in ranges}:
        del seen[key.to_user_string()]  # more has come meanwhile: the next tick looks again
        return
    rows = [(each.partition, each.position, each.holder or "nobody") for each in lags]
    metadata: dict[str, Any] = {
        "events waiting": 0,
        "positions": table(("partition", "position", "held by"), rows),
    }
    source = catalogue.key(relay.topic, "sequenced")
    tags = made_of({source: watermarks_version(ranges)})
    yield dg.AssetMaterialization(key, metadata=metadata, tags=tags)
