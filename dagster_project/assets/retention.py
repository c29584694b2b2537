"""Retention: what a topic's policy lets go is read back, and removed from the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dagster_project import common, duties
from dagster_project.catalogue import Catalogue
from dagster_project.common import of_database, table
from ops.duties import verbs
from ops.duties.setup import Setup
from ops.duties.units import DutyOutcome
from ops.policies.file import Policies
from ops.policies.policy import topic_drift
from ops.policies.settings import TopicPolicy
from ops.policies.values import said_size
from ops.retention.guard import ReadBack
from penstock.errors import RetentionRefused
from penstock.topics.retention import retention_limits
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

GUARDED_DROP = "guarded_drop"


def build(catalogue: Catalogue) -> list[dg.AssetsDefinition]:
    """An asset for each topic from which something is removed."""
    return [_retention(policy, catalogue) for policy in catalogue.retained()]


def _retention(policy: TopicPolicy, catalogue: Catalogue) -> dg.AssetsDefinition:
    topic, wanted = policy.topic, policy.retention
    assert wanted is not None
    key = catalogue.key(topic, "retention")
    before = catalogue.key(topic, "archive" if policy.archive else "sealed")
    copies = (
        f"whose {wanted.copies} copies this very run has read back and found whole"
        if wanted.copies
        else "which need no copy (archive: none)"
    )
    limit = (
        f"Above {said_size(wanted.max_bytes)} of sealed events the oldest go before their age and "
        "before everybody has read them, with a record, but not without their copies. "
        if wanted.max_bytes
        else ""
    )

    @dg.asset(
        key=key,
        deps=[before],
        retry_policy=common.RETRY,
        output_required=False,
        pool=common.SPARK_POOL,
        kinds={catalogue.kind, "spark"},
        check_specs=[_guarded_drop(key)],
        config_schema=duties.config(),
        description=catalogue.about(
            f"Removes from the database the log epochs of {topic} that are sealed, passed by "
            f"every subscription, older than {wanted.minimum_age_seconds} s, and {copies}. {limit}"
            "It removes nothing when one copy is damaged, nor while the database follows another "
            "policy than the file.",
        ),
        **catalogue.options(topic, _retention),
    )
    @of_database(catalogue.database)
    def retention(
        context: dg.AssetExecutionContext,
        database: DatabaseResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        with database.connect() as connection:
            if not common.exists(connection, topic):
                context.log.info("%s does not exist yet", topic)
                # A check of an asset's own op has to tell something.
                yield _whole(key, ReadBack(), note=f"{topic} does not exist yet")
                return
            policies = database.policies()  # as they are now, not as the code was loaded with
            require_policy(connection, policies, topic)
        places, unnamed = targets.usable(policies.of_topic(topic).archive)
        step = context.op_execution_context
        outcomes = duties.told(
            step,
            verbs.clean_topics(
                Setup.of_url(database.url(), *places),
                [verbs.DutyPlace(topic)],
                engine=step.op_config["engine"],
                spark=spark.session,
            ),
        )
        # A damaged copy fails the check below, with its place.  All other errors fail the run.
        duties.require(each for each in outcomes if not _is_reading(each))
        with database.connect() as connection:
            limits = _limits(connection, topic)
        yield dg.MaterializeResult(metadata=_cleaned(outcomes) | limits)
        yield _whole(key, _read(outcomes, unnamed))

    return retention


def _guarded_drop(key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        GUARDED_DROP,
        asset=key,
        blocking=True,
        description="Every copy of what the run was about to remove was read back: its count and "
        "checksum are those of the seal. It only reports: a damaged copy is forgotten by the "
        "database, which removes nothing, and the sensor `lost_copies` has it made again.",
    )


def _whole(key: dg.AssetKey, read: ReadBack, note: str = "") -> dg.AssetCheckResult:
    metadata: dict[str, Any] = {"copies read": read.copies, "events read": read.events}
    if note:
        metadata["note"] = note
    if read.damaged:
        rows = [(d.target, d.partition, d.log_epoch, d.damage) for d in read.damaged]
        metadata["damaged"] = table(("target", "partition", "log epoch", "damage"), rows)
    if read.unavailable:
        metadata["not available"] = table(("target", "why"), read.unavailable.items())
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=GUARDED_DROP,
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


def _is_reading(outcome: DutyOutcome) -> bool:
    """Whether a unit has read copies back, so that it can say which are damaged."""
    return isinstance(outcome.result, ReadBack)


def _read(outcomes: Sequence[DutyOutcome], unnamed: dict[str, str]) -> ReadBack:
    """What all units together have read back."""
    whole = ReadBack(unavailable=dict(unnamed))
    for each in outcomes:
        if _is_reading(each):
            whole.take(each.result)
    return whole


def _limits(connection: Any, topic: str) -> dict[str, Any]:
    """How full the topic is afterwards, where its policy has a limit: the sizes are plotted."""
    found = [each for each in retention_limits(connection) if each.topic == topic]
    return {
        key: value
        for each in found
        for key, value in {
            "bytes kept": each.size,
            "bytes at most": each.max_bytes,
            "log epochs not counted yet": each.uncounted,
            "what holds it above the limit": each.hold or "nothing",
        }.items()
    }


def _cleaned(outcomes: Sequence[DutyOutcome]) -> dict[str, Any]:
    done = [each for each in outcomes if each.unit.duty == "clean"]
    rows = [
        (r.partition, r.old_low_sequence, r.low_sequence, r.reason)
        for each in done
        for r in each.result or []
    ]
    columns = ("partition", "low sequence before", "low sequence now", "what holds the rest")
    return {
        "events removed": sum(each.events for each in done),
        "partitions": table(columns, rows),
        **duties.metadata(outcomes),
    }
