"""The logs of the topics, and the job that gives their events a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import (
    HOUSE_GROUP,
    beta_allowed,
    evaluated,
    exists,
    table,
    topic_options,
)
from dagster_project.naming import SEQUENCE, topic_key
from penstock import log, subscriptions
from penstock.records import PartitionRange
from penstock.topics import names
from penstock.upkeep.sequencing import sequence
from resources.database import DatabaseResource


def build(catalogue: Catalogue) -> dg.Definitions:
    """An observable log and a sequenced asset for each topic, with the checks of the sequence."""
    with beta_allowed():
        logs = [_log(topic, catalogue) for topic in catalogue.topics]
    checks = [
        make(topic, catalogue)
        for topic in catalogue.topics
        for make in (_no_sequence_gap, _consumer_lag)
    ]
    return dg.Definitions(assets=[*logs, _sequence(catalogue)], asset_checks=checks)


def watermarks_version(ranges: Sequence[PartitionRange]) -> dg.DataVersion:
    """What changes when a log grows: history and high watermark of each partition."""
    return dg.DataVersion(
        ",".join(f"{each.partition_id}:{each.history}.{each.high_watermark}" for each in ranges)
    )


def log_metadata(ranges: Sequence[PartitionRange]) -> dict[str, Any]:
    """The partitions of a log."""
    rows = [(r.partition, r.low_sequence, r.high_watermark, r.history) for r in ranges]
    return {
        "events ever": sum(each.high_watermark for each in ranges),
        "events in the database": sum(r.high_watermark - r.low_sequence + 1 for r in ranges),
        "partitions": table(("partition", "low sequence", "high watermark", "history"), rows),
    }


def _log(topic: str, catalogue: Catalogue) -> Any:
    options = topic_options(topic, catalogue.policies.of_topic(topic))

    @dg.observable_source_asset(
        key=topic_key(topic, "log"),
        group_name=options["group_name"],
        metadata=options["metadata"],
        tags={"dagster/kind/postgres": ""},
        description=f"The events of **{topic}** as applications publish them, each in its own "
        "transaction. Observing it reads the high watermark of every partition.",
    )
    def observe(database: DatabaseResource) -> dg.ObserveResult:
        with database.connect() as connection:
            ranges = names.describe_topic(connection, topic).partitions
        return dg.ObserveResult(
            data_version=watermarks_version(ranges), metadata=log_metadata(ranges)
        )

    return observe


def _sequence(catalogue: Catalogue) -> dg.AssetsDefinition:
    specs = [
        dg.AssetSpec(
            topic_key(topic, "sequenced"),
            deps=[topic_key(topic, "log"), SEQUENCE],
            skippable=True,
            kinds={"postgres"},
            description=f"**{topic}** up to its high watermark: every event below it has its "
            "sequence, without a gap, for ever.",
            **topic_options(topic, catalogue.policies.of_topic(topic)),
        )
        for topic in catalogue.topics
    ]
    house = dg.AssetSpec(
        SEQUENCE,
        group_name=HOUSE_GROUP,
        kinds={"postgres"},
        skippable=True,
        description="Rounds of the sequencer over all topics, until nothing waits. The daemon "
        "(`python -m consumers`) does the same all the time; this is for when none runs.",
    )

    @dg.multi_asset(name="penstock__sequence", specs=[house, *specs], can_subset=True)
    @evaluated
    def run(
        context: dg.AssetExecutionContext, database: DatabaseResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        done = sequence(database.url())
        selected = context.selected_asset_keys
        if SEQUENCE in selected:
            yield dg.MaterializeResult(
                asset_key=SEQUENCE,
                metadata={
                    "events": done.events,
                    "passes": done.passes,
                    "another sequencer was at work": done.busy,
                    "slices added": done.slices_added,
                },
            )
        with database.connect() as connection:
            for topic in catalogue.topics:
                key = topic_key(topic, "sequenced")
                if key in selected and exists(connection, topic):
                    ranges = names.describe_topic(connection, topic).partitions
                    yield dg.MaterializeResult(
                        asset_key=key,
                        metadata=log_metadata(ranges),
                        data_version=watermarks_version(ranges),
                    )

    return run


def _no_sequence_gap(topic: str, catalogue: Catalogue) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=topic_key(topic, "sequenced"),
        name="no_sequence_gap",
        blocking=True,
        description="The index of the log goes on without a hole or an overlap.",
    )
    def check(database: DatabaseResource) -> dg.AssetCheckResult:
        with database.connect() as connection:
            gaps = log.gaps(connection, topic) if exists(connection, topic) else []
        rows = [(gap.partition, gap.expected, gap.found) for gap in gaps]
        return dg.AssetCheckResult(
            passed=not gaps,
            metadata={"gaps": table(("partition", "expected", "found"), rows)} if gaps else {},
        )

    return check


def _consumer_lag(topic: str, catalogue: Catalogue) -> dg.AssetChecksDefinition:
    limit = catalogue.policies.limits.consumer_lag

    @dg.asset_check(
        asset=topic_key(topic, "sequenced"),
        name="consumer_lag",
        description=f"No subscription lets an event wait for more than {limit} s.",
    )
    def check(database: DatabaseResource) -> dg.AssetCheckResult:
        with database.connect() as connection:
            lags = [each for each in subscriptions.lag(connection) if each.topic == topic]
        late = [each for each in lags if each.lag_seconds > limit]
        rows = [
            (each.subscription, each.partition, each.lag_events, f"{each.lag_seconds:.1f}",
             each.holder or "nobody")
            for each in sorted(late or lags, key=lambda each: -each.lag_seconds)[:50]
        ]  # fmt: skip
        columns = ("subscription", "partition", "events", "seconds", "held by")
        return dg.AssetCheckResult(
            passed=not late,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "events waiting": sum(each.lag_events for each in lags),
                "longest wait (s)": max((each.lag_seconds for each in lags), default=0.0),
                "subscriptions": table(columns, rows),
            },
        )

    return check
