"""The life of a topic's log epochs: sealed, archived, guarded, removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import (
    SPARK_POOL,
    beta_allowed,
    epoch_metadata,
    epochs_partitions,
    evaluated,
    exists,
    table,
    topic_options,
)
from dagster_project.naming import POLICIES, epoch_name, epoch_of, topic_key
from ops.policies.file import Policies, TopicPolicy
from ops.policies.policy import topic_drift
from ops.retention.clean import CleanRun, clean, drop_slices
from ops.retention.guard import ReadBack, spark_reader
from ops.retention.storage import SliceDrop
from penstock.archive.copies import key_of
from penstock.errors import RetentionRefused
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

if TYPE_CHECKING:
    from ops.archive.archiving import EpochCopy

#: One JVM start for so many log epochs; a retry repeats at most as many.
EPOCHS_PER_RUN = 16


def build(catalogue: Catalogue) -> dg.Definitions:
    """The assets and checks of every topic."""
    parts = [topic_assets(topic, catalogue.policies) for topic in catalogue.topics]
    return dg.Definitions.merge(dg.Definitions(), *parts)


def topic_assets(topic: str, policies: Policies) -> dg.Definitions:
    """Sealed log epochs; where the policy has them, the archive, and retention with its guard."""
    policy = policies.of_topic(topic)
    assets: list[Any] = [_sealed(topic, policy)]
    if policy.archive:
        with beta_allowed():
            assets.append(_archive(policy))
    if policy.retention:
        assets.append(_retention(policy, policies))
    return dg.Definitions(assets=assets)


def _sealed(topic: str, policy: TopicPolicy) -> dg.AssetSpec:
    return dg.AssetSpec(
        topic_key(topic, "sealed"),
        deps=[topic_key(topic, "sequenced")],
        partitions_def=epochs_partitions(topic),
        kinds={"postgres"},
        description=f"The log epochs of **{topic}**: ranges of one partition that are archived and "
        "removed as one, with count and checksum. The job `seal` cuts them; one cut elsewhere "
        "is found by the sensor `sealed_epochs`.",
        **topic_options(topic, policy),
    )


def _archive(policy: TopicPolicy) -> dg.AssetsDefinition:
    topic = policy.topic

    @dg.asset(
        key=topic_key(topic, "archive"),
        deps=[topic_key(topic, "sealed")],
        partitions_def=epochs_partitions(topic),
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=EPOCHS_PER_RUN),
        pool=SPARK_POOL,
        kinds={"spark", "deltalake"},
        description=f"**{topic}** in Delta on {', '.join(policy.archive)}: Spark writes each "
        "log epoch, reads it back, and records a copy only if count and checksum are the seal's. "
        "It fails when a log epoch has fewer copies than its quorum. "
        "Of a partition that was archived before, what is damaged or gone is made again.",
        **topic_options(topic, policy),
    )
    @evaluated
    def archive(
        context: dg.AssetExecutionContext,
        database: DatabaseResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> dg.MaterializeResult[None]:
        # Imported here: without pyspark and deltalake every other run starts a second sooner.
        from ops.archive.placing import place_copies

        assert policy.placement is not None
        placed = place_copies(
            spark.session,
            database.url(),
            topic,
            policy.placement,
            targets.target,
            epochs=[epoch_of(name) for name in context.partition_keys],
            repair=True,
        )
        for why in placed.away.values():
            context.log.warning(why)
        found = {
            epoch_name(key_of(each.epoch)): {
                **epoch_metadata(each.epoch), "copies on": ", ".join(each.held)
            }
            for each in placed.epochs
        }  # fmt: skip
        for copy in placed.made:
            found[epoch_name(key_of(copy.epoch))].update(copy_metadata(copy))
        for name, described in found.items():
            context.add_asset_metadata(described, partition_key=name)
        single = found[context.partition_keys[0]]["checksum"] if len(found) == 1 else None
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"sha256:{single}") if single else None
        )

    return archive


def copy_metadata(copy: EpochCopy) -> dict[str, Any]:
    """Where a copy lies, and whether this run wrote it."""
    return {
        f"copy on {copy.target}": dg.MetadataValue.path(copy.location),
        f"written to {copy.target} now": copy.written,
    }


def _retention(policy: TopicPolicy, policies: Policies) -> dg.AssetsDefinition:
    topic, wanted = policy.topic, policy.retention
    assert wanted is not None
    key = topic_key(topic, "retention")
    deps = [topic_key(topic, "archive" if policy.archive else "sealed"), POLICIES]
    copies = (
        f"whose {wanted.copies} copies this very run has read back and found whole"
        if wanted.copies
        else "which need no copy (archive: none)"
    )

    @dg.asset(
        key=key,
        deps=deps,
        output_required=False,
        pool=SPARK_POOL,
        kinds={"postgres", "spark"},
        check_specs=[_whole_check(key)],
        description=f"Removes from the database the log epochs of **{topic}** that are sealed, "
        f"passed by every subscription, older than {wanted.minimum_age_seconds} s, and {copies}. "
        "It removes nothing when one copy is damaged, nor while the database follows another "
        "policy than the file.",
        **topic_options(topic, policy),
    )
    @evaluated
    def retention(
        context: dg.AssetExecutionContext,
        database: DatabaseResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        with database.connect() as connection:
            if not exists(connection, topic):
                context.log.info("%s does not exist yet", topic)
                yield _whole(key, ReadBack())
                return
            require_policy(connection, policies, topic)
        url = database.url()
        read = spark_reader(spark.session, url)
        places, unnamed = targets.usable(policy.archive)
        run = clean(url, topic, places, read)
        run.read.unavailable.update(unnamed)
        yield dg.MaterializeResult(metadata=_cleaned(run, drop_slices(url)))
        yield _whole(key, run.read)

    return retention


def _whole_check(key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        "archive_count_and_checksum",
        asset=key,
        blocking=True,
        description="Every copy of what the run was about to remove was read back: its count and "
        "checksum are those of the seal. It only reports: a damaged copy is forgotten by the "
        "database, which removes nothing, and the sensor `missing_copies` has it made again.",
    )


def _whole(key: dg.AssetKey, read: ReadBack) -> dg.AssetCheckResult:
    metadata: dict[str, Any] = {"copies read": read.copies, "events read": read.events}
    if read.damaged:
        rows = [(d.target, d.partition, d.log_epoch, d.damage) for d in read.damaged]
        metadata["damaged"] = table(("target", "partition", "log epoch", "damage"), rows)
    if read.unavailable:
        metadata["not available"] = table(("target", "why"), read.unavailable.items())
    return dg.AssetCheckResult(
        asset_key=key,
        check_name="archive_count_and_checksum",
        passed=not read.damaged,
        metadata=metadata,
    )


def require_policy(connection: Any, policies: Policies, topic: str) -> None:
    """RetentionRefused unless the database follows the file.

    A relay that is written down but has no subscription yet holds back nothing: it would lose
    whatever is removed before it starts.
    """
    differences = topic_drift(connection, policies, topic)
    if differences:
        first = differences[0]
        raise RetentionRefused(
            f"nothing of {topic} is removed: for {first.setting} the policy file says "
            f"{first.wanted}, the database has {first.found}",
            hint="run the job policies, or change the policy file",
        )


def _cleaned(run: CleanRun, slices: Sequence[SliceDrop]) -> dict[str, Any]:
    moved = [each.low_sequence - each.old_low_sequence for each in run.partitions]
    rows = [(r.partition, r.old_low_sequence, r.low_sequence, r.reason) for r in run.partitions]
    columns = ("partition", "low sequence before", "low sequence now", "what holds the rest")
    return {
        "events removed": sum(moved),
        "partitions": table(columns, rows),
        "slices": table(
            ("slice", "state", "detail"), [(s.slice, s.state.value, s.detail) for s in slices]
        ),
    }
