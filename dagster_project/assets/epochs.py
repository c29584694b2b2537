"""The log epochs of each topic by the hour of their sealing: sealed, archived, rolled up.

A partition is an hour of the database's clock.  Log epochs are rows in the metadata, so the number
of partitions grows with time and not with the traffic.  What a partition holds is what the database
has recorded; its data version is the hash of the checksums of its log epochs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project import common
from dagster_project.assets.archiving import bring
from dagster_project.catalogue import Catalogue
from dagster_project.common import DATA_VERSION, SPARK_POOL, epoch_metadata, hour_of, of_database
from ops.archive.placement import verified_on
from ops.hours import data_version, epochs_of_hour
from ops.policies.file import Policies
from ops.policies.policy import FOLLOWS_ANOTHER, follows
from ops.policies.settings import TopicPolicy
from ops.policies.values import REFERENCE
from penstock.archive.copies import key_of
from penstock.records import LogEpoch
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

#: A run takes so many hours of a backfill: one JVM start for all of them.
HOURS_PER_RUN = 6
COPIES_VERIFIED = "copies_verified"
#: The tag of runs that declarative automation asks for.
AUTOMATIC = "dagster/from_automation_condition"

#: Every five minutes, the hours that were sealed and not archived, or were sealed further since.  A
#: run that failed is repeated once an hour.  `missing` sees every hour, `on_missing` only the last.
#: The crons come first: where no time has come, nothing is looked up of the topics.
ARCHIVE_CONDITION = (
    (
        (
            dg.AutomationCondition.cron_tick_passed("*/5 * * * *")
            & (
                (dg.AutomationCondition.missing() & ~dg.AutomationCondition.execution_failed())
                | dg.AutomationCondition.any_deps_updated().since_last_handled()
            )
        )
        | (
            dg.AutomationCondition.cron_tick_passed("23 * * * *")
            & dg.AutomationCondition.execution_failed()
        )
    )
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.any_deps_missing()
).with_label("sealed and not archived")

#: Of an asset that automation asks for, Dagster makes the checks of its own op, and the other ones
#: (`readable`, `schema_drift`) only if a check of the asset has a condition.
WITH_ITS_ASSET = dg.AutomationCondition.any_deps_match(
    dg.AutomationCondition.will_be_requested()
).with_label("with its asset")


def build(catalogue: Catalogue) -> list[Any]:
    """`sealed` for each topic, and `archive` for those that the policy file archives."""
    return [
        *(_sealed(topic, catalogue) for topic in catalogue.topics),
        *(_archive(policy, catalogue) for policy in catalogue.archived()),
    ]


def _sealed(topic: str, catalogue: Catalogue) -> dg.AssetSpec:
    return dg.AssetSpec(
        catalogue.key(topic, "sealed"),
        deps=[catalogue.key(topic, "sequenced")],
        partitions_def=catalogue.hours,
        kinds={catalogue.kind},
        freshness_policy=common.freshness(catalogue.policies.of_topic(topic)),
        description=catalogue.about(
            f"The log epochs of {topic}: ranges of one partition that are archived and removed "
            "as one, with count and checksum. A partition here is the hour in which they were "
            "sealed. The job `seal` cuts them, and the sensor `sealed` reports what the database "
            "has. While nothing is published there is nothing to seal, and it is not fresh.",
        ),
        **catalogue.options(topic, _sealed),
    )


def sealed_event(catalogue: Catalogue, topic: str, name: str, epochs: Sequence[LogEpoch]) -> Any:
    """The event that an hour holds these log epochs."""
    return dg.AssetMaterialization(
        catalogue.key(topic, "sealed"),
        partition=name,
        metadata=epoch_metadata(epochs),
        tags={DATA_VERSION: data_version(epochs)},
    )


def archive_event(
    catalogue: Catalogue, topic: str, name: str, epochs: Sequence[LogEpoch]
) -> dg.AssetMaterialization | dg.AssetObservation:
    """What the database has recorded of the copies of an hour.

    It is a materialization once every log epoch has its copies, else an observation: then the
    partition stays missing, and a run is asked for.
    """
    whole = verified_on(epochs, catalogue.policies.of_topic(topic).placement)
    metadata = {
        **epoch_metadata(epochs),
        "verified": f"{len(whole)} of {len(epochs)}",
        "events verified": sum(each.event_count for each in whole),
    }
    event = dg.AssetMaterialization if len(whole) == len(epochs) else dg.AssetObservation
    return event(
        catalogue.key(topic, "archive"),
        partition=name,
        metadata=metadata,
        tags={DATA_VERSION: data_version(whole)},
    )


def column_schema() -> dg.TableSchema:
    """The columns of the archive, for Dagster's page."""
    from penstock.archive.format import DAY_SCHEMA

    return dg.TableSchema(
        [dg.TableColumn(field.name, str(field.type), describe(field.name)) for field in DAY_SCHEMA]
    )


def describe(column: str) -> str:
    """What a column of the archive holds."""
    return {
        "partition": "the partition of the topic",
        "log_epoch": "the number of the log epoch",
        "sequence": "the position in the partition: 1, 2, 3, without a gap",
        "headers": "the text of the JSON that the database stores",
        "created_at": "when it was published",
        "sequenced_at": "when it got its sequence",
        "history": "the line of history of the log",
        "sealed_date": "the day (UTC) of sealing",
    }.get(column, "as published")


def places(policy: TopicPolicy, policies: Policies) -> dict[str, Any]:
    """Where the archive lies.  Variables are not resolved: nobody knows what is in them."""
    uris = [_place(policies, policies.targets[name].uri) for name in policy.archive]
    return {"dagster/uri": uris[0], "penstock/targets": ", ".join(uris)}


def _place(policies: Policies, uri: str) -> str:
    """A target as people find it: a folder that is relative to the policy file is whole."""
    if REFERENCE.fullmatch(uri):
        return uri
    whole = uri if "://" in uri else str(policies.folder / uri)
    return f"{whole.rstrip('/')}/{policies.database}" if policies.database else whole


def _archive(policy: TopicPolicy, catalogue: Catalogue) -> dg.AssetsDefinition:
    topic = policy.topic
    key = catalogue.key(topic, "archive")
    options = catalogue.options(topic, _archive)
    options["metadata"] |= places(policy, catalogue.policies)
    options["metadata"]["dagster/column_schema"] = column_schema()

    with common.beta_allowed():

        @dg.asset(
            key=key,
            deps=[catalogue.key(topic, "sealed")],
            partitions_def=catalogue.hours,
            backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=HOURS_PER_RUN),
            automation_condition=ARCHIVE_CONDITION,
            retry_policy=common.RETRY,
            freshness_policy=common.freshness(policy),
            output_required=False,
            pool=SPARK_POOL,
            kinds={"spark", "deltalake"},
            check_specs=[_copies_verified(key)],
            description=catalogue.about(
                f"{topic} in Delta on {', '.join(policy.archive)}, by the hour of sealing: "
                "Spark writes each log epoch, reads it back, and records a copy only if count and "
                "checksum are the seal's. A log epoch that cannot be copied stops no other. In an "
                "hour that was archived before, what is damaged or gone is made again.",
            ),
            **options,
        )
        @of_database(catalogue.database)
        def archive(
            context: dg.AssetExecutionContext,
            database: DatabaseResource,
            spark: SparkResource,
            targets: ArchiveTargetResource,
        ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
            hours = {name: hour_of(name) for name in context.partition_keys}
            with database.connect() as connection:
                is_followed = follows(connection, database.policies())
            if not is_followed:
                context.log.warning("%s: nothing is archived", FOLLOWS_ANOTHER)
                yield _unasked(key)
                yield common.no_event()
                return
            before = _hours(database, topic, hours).values()
            failed = bring(
                database.url(),
                policy,
                [key_of(each) for found in before for each in found],
                spark=spark,
                targets=targets,
                repair=AUTOMATIC not in context.run.tags,  # somebody asked for these hours
            )
            done = _hours(database, topic, hours)
            for name, epochs in done.items():
                context.log_event(archive_event(catalogue, topic, name, epochs))
            yield _verified(key, policy, done)
            for error in failed:
                context.log.error(str(error))
            if failed:
                raise common.first_to_retry(failed)
            yield common.no_event()

    return archive


def _hours(
    database: DatabaseResource, topic: str, hours: dict[str, dt.datetime]
) -> dict[str, list[LogEpoch]]:
    """What the database has of each hour."""
    with database.connect() as connection:
        if not common.exists(connection, topic):
            return {}
        return {name: epochs_of_hour(connection, topic, hour) for name, hour in hours.items()}


def _copies_verified(key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        COPIES_VERIFIED,
        asset=key,
        blocking=True,
        automation_condition=WITH_ITS_ASSET,
        description="Every log epoch of the hour has as many copies as its policy asks for, each "
        "read back and found to be what was sealed.",
    )


def _unasked(key: dg.AssetKey) -> dg.AssetCheckResult:
    """Nothing was archived, because it is another file that says where copies lie."""
    return dg.AssetCheckResult(
        asset_key=key, check_name=COPIES_VERIFIED, passed=True, metadata={"note": FOLLOWS_ANOTHER}
    )


def _verified(
    key: dg.AssetKey, policy: TopicPolicy, hours: dict[str, list[LogEpoch]]
) -> dg.AssetCheckResult:
    epochs = [each for found in hours.values() for each in found]
    whole = {key_of(each) for each in verified_on(epochs, policy.placement)}
    lacking = [each for each in epochs if key_of(each) not in whole]
    rows = [
        (e.partition, e.log_epoch, ", ".join(sorted(set(policy.archive) - set(e.targets))))
        for e in lacking
    ]
    metadata: dict[str, Any] = {"log epochs": len(epochs), "verified": len(whole)}
    if not hours:
        metadata["note"] = f"{policy.topic} does not exist yet"
    if rows:
        metadata["lacking"] = common.table(("partition", "log epoch", "not on"), rows)
    return dg.AssetCheckResult(
        asset_key=key, check_name=COPIES_VERIFIED, passed=not lacking, metadata=metadata
    )
