"""The logs of the topics, and the asset that gives their events a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project import duties
from dagster_project.catalogue import Catalogue
from dagster_project.common import (
    HOUSE_GROUP,
    beta_allowed,
    code_of,
    no_event,
    of_database,
    table,
)
from ops.duties import verbs
from ops.duties.setup import Setup
from ops.duties.units import DutyOutcome
from penstock.errors import TopicNotFound
from penstock.records import PartitionRange
from penstock.topics import names
from resources.database import DatabaseResource
from resources.spark import SparkResource

#: The op that sequences.
SEQUENCE = "penstock__sequence"


def build(catalogue: Catalogue) -> list[Any]:
    """An observable log and a sequenced asset for each topic, by one op each for all of them."""
    return [*([_logs(catalogue)] if catalogue.topics else []), _sequence(catalogue)]


def watermarks_version(ranges: Sequence[PartitionRange]) -> str:
    """What changes when a log grows: history and high watermark of each partition."""
    return ",".join(f"{each.partition_id}:{each.history}.{each.high_watermark}" for each in ranges)


def in_the_database(ranges: Sequence[PartitionRange]) -> int:
    """How many events of a log retention has not removed."""
    return sum(each.high_watermark - each.low_sequence + 1 for each in ranges)


def log_metadata(ranges: Sequence[PartitionRange]) -> dict[str, Any]:
    """A log as it is now."""
    rows = [(r.partition, r.low_sequence, r.high_watermark, r.history) for r in ranges]
    return {
        "events ever": sum(each.high_watermark for each in ranges),
        "events in the database": in_the_database(ranges),
        "partitions": table(("partition", "low sequence", "high watermark", "history"), rows),
    }


def sequenced_metadata(ranges: Sequence[PartitionRange]) -> dict[str, Any]:
    """What stays true of a sequenced log: how far it reaches.  `log` says what is removed of it."""
    rows = [(each.partition, each.high_watermark, each.history) for each in ranges]
    return {
        "events ever": sum(each.high_watermark for each in ranges),
        "partitions": table(("partition", "high watermark", "history"), rows),
    }


def _logs(catalogue: Catalogue) -> Any:
    specs = [
        dg.AssetSpec(
            catalogue.key(topic, "log"),
            kinds={catalogue.kind},
            description=catalogue.about(
                f"The events of {topic} as applications publish them, each in its own "
                "transaction. The sensor `backlog` observes how far it reaches and what of it is "
                "still in the database.",
            ),
            **catalogue.options(topic, _logs),
        )
        for topic in catalogue.topics
    ]
    topics = catalogue.keys("log")
    with beta_allowed():

        @dg.multi_observable_source_asset(  # type: ignore[untyped-decorator]
            specs=specs, name=catalogue.named("penstock__logs"), can_subset=True
        )
        @of_database(catalogue.database)
        def logs(
            context: dg.AssetExecutionContext, database: DatabaseResource
        ) -> Iterator[dg.ObserveResult]:
            with database.connect() as connection:
                for key in context.selected_asset_keys:
                    try:
                        ranges = names.describe_topic(connection, topics[key]).partitions
                    except TopicNotFound:
                        context.log.info("%s does not exist yet", topics[key])
                        continue
                    yield dg.ObserveResult(
                        asset_key=key,
                        data_version=dg.DataVersion(watermarks_version(ranges)),
                        metadata=log_metadata(ranges),
                    )

        return logs


def _sequence(catalogue: Catalogue) -> dg.AssetsDefinition:
    topics, house = catalogue.keys("sequenced"), catalogue.house("sequence")
    name = catalogue.named(SEQUENCE)

    @dg.multi_asset(
        name=name, specs=_specs(catalogue), can_subset=True, config_schema=duties.config()
    )
    @of_database(catalogue.database)
    def run(
        context: dg.AssetExecutionContext, database: DatabaseResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        step = context.op_execution_context
        engine = step.op_config["engine"]
        done = verbs.sequence(Setup.of_url(database.url()), engine=engine, spark=spark.session)
        duties.require(duties.told(step, done))
        if house in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=house, metadata=_sequenced(done))
        with database.connect() as connection:
            for key in context.selected_asset_keys - {house}:
                try:
                    ranges = names.describe_topic(connection, topics[key]).partitions
                except TopicNotFound:
                    context.log.info("%s does not exist yet", topics[key])
                    yield no_event(key)
                    continue
                yield dg.MaterializeResult(
                    asset_key=key,
                    metadata=sequenced_metadata(ranges),
                    data_version=dg.DataVersion(watermarks_version(ranges)),
                )

    return run


def _sequenced(done: Sequence[DutyOutcome]) -> dict[str, Any]:
    found = [each.result for each in done]
    return {
        "events": sum(each.events for each in found),
        "passes": sum(each.passes for each in found),
        "another sequencer was at work": any(each.busy for each in found),
        "slices added": sum(each.slices_added for each in found),
        **duties.metadata(done),
    }


def _specs(catalogue: Catalogue) -> list[dg.AssetSpec]:
    house = dg.AssetSpec(
        catalogue.house("sequence"),
        group_name=catalogue.group(HOUSE_GROUP),
        kinds={catalogue.kind},
        skippable=True,
        metadata=code_of(_sequence),
        description="Rounds of the sequencer over all topics, until nothing waits. The daemon "
        "(`python -m consumers`) does the same all the time; this is for when none runs.",
    )
    return [
        house,
        *(
            dg.AssetSpec(
                catalogue.key(topic, "sequenced"),
                deps=[catalogue.key(topic, "log")],
                skippable=True,
                kinds={catalogue.kind},
                description=catalogue.about(
                    f"{topic} up to its high watermark: every event below it has its "
                    "sequence, without a gap, for ever. The sensor `backlog` reports it while a "
                    "daemon does the work.",
                ),
                **catalogue.options(topic, _sequence),
            )
            for topic in catalogue.topics
        ),
    ]
