"""The jobs: each duty runs alone, by its schedule, its sensor or by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import SPARK_POOL, epoch_metadata, evaluated, exists
from dagster_project.naming import (
    HEALTH,
    POLICIES,
    SEQUENCE,
    SWEEP,
    epoch_name,
    epochs_name,
    relay_key,
    slug,
    topic_key,
)
from dagster_project.topics import copy_metadata
from ops.archive.placement import Placement
from ops.policies.file import Policies
from ops.seal import seal
from penstock.archive.copies import key_of
from penstock.errors import ConfigurationError, PenstockError
from penstock.records import LogEpoch
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

if TYPE_CHECKING:
    from ops.archive.archiving import EpochCopy
    from penstock.archive.targets import Target

# Schemas, not classes of dg.Config: Dagster cannot read those from annotations that are texts.
SEAL_CONFIG = {
    "topics": dg.Field([str], default_value=[], description="none: all that have a seal policy"),
    "max_events": dg.Field(int, is_required=False, description="instead of the policy's"),
    "max_age_seconds": dg.Field(int, is_required=False, description="0 seals what is there"),
}
BACKFILL_CONFIG = {
    "topic": dg.Field(str, default_value="", description="empty: all of the policy file"),
    "target": dg.Field(str, default_value="", description="empty: as the policy places copies"),
}


@dataclass(frozen=True)
class Duties:
    """The jobs by name; ``archive`` holds one for each archived topic."""

    sequence: Any
    sweep: Any
    policies: Any
    health: Any
    seal: Any
    backfill: Any
    tidy: Any
    relay: Any = None
    clean: Any = None
    archive: dict[str, Any] = field(default_factory=dict)

    def all(self) -> list[Any]:
        """Every job that there is."""
        named = (self.sequence, self.sweep, self.policies, self.health, self.seal, self.backfill)
        return [*named, self.tidy, *filter(None, (self.relay, self.clean)), *self.archive.values()]


def build(catalogue: Catalogue) -> Duties:
    """The jobs for these topics and relays."""
    topics = catalogue.topics
    sequenced = [SEQUENCE, *(topic_key(topic, "sequenced") for topic in topics)]
    relays = [relay_key(name) for name in catalogue.policies.relays]
    return Duties(
        sequence=_assets_job(
            "sequence", dg.AssetSelection.assets(*sequenced), "Give events their sequences."
        ),
        relay=_assets_job(
            "relay", dg.AssetSelection.assets(*relays), "Carry every relay's backlog to its sink."
        )
        if relays
        else None,
        sweep=_assets_job("sweep", dg.AssetSelection.assets(SWEEP), "Free dead consumers' leases."),
        policies=_assets_job(
            "policies", dg.AssetSelection.assets(POLICIES), "Apply the policy file."
        ),
        health=_assets_job(
            "health",
            dg.AssetSelection.assets(HEALTH) | dg.AssetSelection.checks_for_assets(POLICIES),
            "Report what is wrong, and what mends it.",
        ),
        clean=_clean_job(catalogue),
        seal=_seal_job(catalogue.policies),
        backfill=_backfill_job(catalogue.policies),
        tidy=_tidy_job(catalogue.policies),
        archive={topic: _archive_job(topic) for topic in _archived(catalogue.policies)},
    )


def _assets_job(name: str, selection: dg.AssetSelection, description: str) -> Any:
    return dg.define_asset_job(name, selection=selection, description=description)


def _archive_job(topic: str) -> Any:
    archive = dg.AssetSelection.assets(topic_key(topic, "archive"))
    return _assets_job(f"archive_{slug(topic)}", archive, f"Archive log epochs of {topic}.")


def _clean_job(catalogue: Catalogue) -> Any:
    policies = [p for p in catalogue.policies.topics.values() if p.retention]
    if not policies:
        return None
    retention = [topic_key(policy.topic, "retention") for policy in policies]
    selection: dg.AssetSelection = dg.AssetSelection.assets(*retention)
    return _assets_job("clean", selection, "Read back what is due, then remove it.")


def _seal_job(policies: Policies) -> dg.JobDefinition:
    @dg.op(name="seal_log_epochs", config_schema=SEAL_CONFIG)
    @evaluated
    def run(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
        config = context.op_config
        failed: list[str] = []
        for topic in config["topics"] or [p.topic for p in policies.topics.values() if p.seal]:
            try:
                with database.connect() as connection:
                    if not exists(connection, topic):
                        context.log.info("%s does not exist yet", topic)
                        continue
                    sealed = seal(connection, topic, **_seal_options(config, policies, topic))
            except PenstockError as error:
                context.log.exception(topic)
                failed.append(f"{topic}: {error}")
                continue
            context.log.info("%s: %s log epochs sealed", topic, len(sealed))
            report_sealed(context, topic, sealed)
        if failed:
            raise dg.Failure("\n".join(failed))

    @dg.job(name="seal", description="Cut log epochs, and make them partitions in Dagster.")
    def job() -> None:
        run()

    return job


def _seal_options(config: Mapping[str, Any], policies: Policies, topic: str) -> dict[str, Any]:
    policy = policies.of_topic(topic).seal
    found: dict[str, Any] = {}
    if policy is not None:
        found = {"max_events": policy.max_events, "max_age_seconds": policy.max_age_seconds}
    found.update(
        {name: config[name] for name in ("max_events", "max_age_seconds") if name in config}
    )
    return found


def report_sealed(context: dg.OpExecutionContext, topic: str, sealed: Sequence[LogEpoch]) -> None:
    """Make partitions of new log epochs and say that they are there."""
    if not sealed:
        return
    keys = [epoch_name(key_of(epoch)) for epoch in sealed]
    context.instance.add_dynamic_partitions(epochs_name(topic), keys)
    for epoch in sealed:
        context.log_event(sealed_event(topic, epoch))


def sealed_event(topic: str, epoch: LogEpoch) -> dg.AssetMaterialization:
    """The event that a log epoch is sealed."""
    return dg.AssetMaterialization(
        topic_key(topic, "sealed"),
        partition=epoch_name(key_of(epoch)),
        metadata=epoch_metadata(epoch),
        tags={"dagster/data_version": f"sha256:{epoch.checksum}"},
    )


def _backfill_job(policies: Policies) -> dg.JobDefinition:
    @dg.op(name="backfill_copies", pool=SPARK_POOL, config_schema=BACKFILL_CONFIG)
    @evaluated
    def run(
        context: dg.OpExecutionContext,
        database: DatabaseResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> None:
        failed: list[str] = []
        chosen = _chosen(policies, **context.op_config)
        for topic in dict.fromkeys(topic for topic, _ in chosen):
            try:
                placement = policies.of_topic(topic).placement
                if context.op_config["target"]:
                    placement = Placement.on_each(context.op_config["target"])
                assert placement is not None
                _backfill(context, topic, placement, targets.target, database=database, spark=spark)
            except PenstockError as error:
                context.log.exception(topic)
                failed.append(f"{topic}: {error}")
        if failed:
            raise dg.Failure("\n".join(failed))

    @dg.job(name="backfill", description="Make every missing or damaged copy again.")
    def job() -> None:
        run()

    return job


def _backfill(
    context: dg.OpExecutionContext,
    topic: str,
    placement: Placement,
    find: Callable[[str], Target],
    *,
    database: DatabaseResource,
    spark: SparkResource,
) -> None:
    """Make the copies that a topic lacks."""
    from ops.archive.placing import QuorumMissed
    from ops.backfill.missing import catch_up

    with database.connect() as connection:
        if not exists(connection, topic):
            return
    try:
        placed = catch_up(spark.session, database.url(), topic, placement, find)
    except QuorumMissed as error:
        _report_made(context, topic, error.placed.made)
        raise
    context.log.info("%s: %s copies made, %s log epochs still lack one", topic,
                     len(placed.made), len(placed.behind))  # fmt: skip
    for why in placed.away.values():
        context.log.warning(why)
    _report_made(context, topic, placed.made)


def _report_made(context: dg.OpExecutionContext, topic: str, made: Sequence[EpochCopy]) -> None:
    if not made:
        return
    keys = [epoch_name(key_of(copy.epoch)) for copy in made]
    context.instance.add_dynamic_partitions(epochs_name(topic), list(dict.fromkeys(keys)))
    for copy, key in zip(made, keys, strict=True):
        metadata = {**epoch_metadata(copy.epoch), **copy_metadata(copy)}
        context.log_event(
            dg.AssetMaterialization(topic_key(topic, "archive"), partition=key, metadata=metadata)
        )


def _tidy_job(policies: Policies) -> dg.JobDefinition:
    @dg.op(name="remove_leftovers")
    @evaluated
    def run(
        context: dg.OpExecutionContext, database: DatabaseResource, targets: ArchiveTargetResource
    ) -> None:
        from ops.backfill.missing import tidy

        failed: list[str] = []
        for topic, name in _chosen(policies, "", ""):
            try:
                with database.connect() as connection:
                    if not exists(connection, topic):
                        continue
                removed = tidy(database.url(), topic, targets.target(name))
            except PenstockError as error:
                context.log.exception(f"{topic} on {name}")  # noqa: G004
                failed.append(f"{topic} on {name}: {error}")
                continue
            context.log.info("%s on %s: %s files removed", topic, name, len(removed))
        if failed:
            raise dg.Failure("\n".join(failed))

    @dg.job(name="tidy", description="Remove files of killed runs and of replaced copies.")
    def job() -> None:
        run()

    return job


def _chosen(policies: Policies, topic: str, target: str) -> list[tuple[str, str]]:
    """The (topic, target) pairs that a run looks at."""
    pairs = [
        (policy.topic, name)
        for policy in policies.topics.values()
        for name in policy.archive
        if topic in {"", policy.topic} and target in {"", name}
    ]
    if not pairs and (topic or target):
        raise ConfigurationError(
            f"the policy file archives no topic {topic or '(any)'} on {target or '(any target)'}",
            hint="name a topic and a target of the policy file, or neither",
        )
    return pairs


def _archived(policies: Policies) -> list[str]:
    return [policy.topic for policy in policies.topics.values() if policy.archive]
