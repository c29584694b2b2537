"""The jobs: each duty runs alone, by its schedule, its sensor or by hand."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_project import common, duties
from dagster_project.assets.epochs import sealed_event
from dagster_project.catalogue import Catalogue
from dagster_project.checks import kinds
from dagster_project.common import SPARK_POOL, hour_name, of_database
from dagster_project.triggers import FAILED_TAG, OURS, SHORT
from ops.backfill.asking import ask_for_dropped
from ops.duties import verbs
from ops.duties.setup import Setup
from ops.duties.units import DONE
from ops.hours import epochs_between
from ops.policies.file import Policies
from ops.policies.policy import FOLLOWS_ANOTHER, follows
from ops.policies.settings import TopicPolicy
from ops.seal import seal
from penstock.archive.copies import key_of
from penstock.errors import PenstockError, lasts
from penstock.topics import names
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

if TYPE_CHECKING:
    from ops.sinks.base import Sink

# Schemas, not classes of dg.Config: Dagster cannot read those from annotations that are texts.
SEAL_CONFIG = {
    "topics": dg.Field([str], default_value=[], description="none: all that have a seal policy"),
    "max_events": dg.Field(int, is_required=False, description="instead of the policy's"),
    "max_age_seconds": dg.Field(int, is_required=False, description="0 seals what is there"),
}
BACKFILL_CONFIG = {
    "request": dg.Field(int, default_value=0, description="the request; 0: all that are due")
}
#: In so many days the hourly audit reads every copy back once.
AUDIT_DAYS = 30
#: Checks that the job health makes, also of what daemons do; the others run with their assets.
LIGHT = (
    "unsequenced_age", "horizon_holder", "no_sequence_gap", "consumer_lag", "lease_coverage",
    "dead_letters", "epochs_contiguous", "backlog_age",
)  # fmt: skip
#: Of the jobs of assets, those that Spark works for.
LONG = ("archive", "clean", "inspect")
#: A tag of a run names so many at most.
MOST_NAMED = 100
#: An error names so many topics at most.
MOST_TOLD = 20
#: The ops that sensors configure.
SEAL, BACKFILL = "seal_log_epochs", "run_request"
#: Checks of copies, which run with the archive: once a day also where nothing is archived.
DAILY = ("readable", "schema_drift")


def build(catalogue: Catalogue) -> list[Any]:
    """The jobs for these topics and relays."""
    assets = functools.partial(_assets, catalogue)
    found: list[Any] = [
        _sequence(catalogue),
        assets("sweep", [catalogue.house("sweep")], "Free dead consumers' leases."),
        assets("storage", [catalogue.house("storage")], "Drop tables of the log nobody needs."),
        assets("policies", [catalogue.house("policies")], "Apply the policy file."),
        _health(catalogue),
        _seal(catalogue),
        _backfill(catalogue),
    ]
    relays = [catalogue.relay_key(each.name) for each in catalogue.relays()]
    archives = [catalogue.key(each.topic, "archive") for each in catalogue.archived()]
    retentions = [catalogue.key(each.topic, "retention") for each in catalogue.retained()]
    if catalogue.policies.canary:
        found.append(assets("canary", [catalogue.house("canary")], "Send one event the whole way."))
    if relays:
        found.append(assets("relay", relays, "Carry the backlog of relays to their sinks."))
    if archives:
        found.append(assets("archive", archives, "Archive the log epochs of hours."))
        found += [_audit(catalogue), _tidy(catalogue), _inspect(catalogue)]
    if retentions:
        found.append(assets("clean", retentions, "Read back what is due, then remove it."))
    return found


def _assets(catalogue: Catalogue, name: str, keys: Iterable[dg.AssetKey], description: str) -> Any:
    return _job(catalogue, name, dg.AssetSelection.assets(*keys), description)


def _job(catalogue: Catalogue, name: str, selection: dg.AssetSelection, description: str) -> Any:
    tags = OURS if name in LONG else OURS | SHORT
    return dg.define_asset_job(
        catalogue.named(name), selection=selection, description=description, tags=tags
    )


def _sequence(catalogue: Catalogue) -> Any:
    keys = [catalogue.house("sequence"), *catalogue.keys("sequenced")]
    chosen = dg.AssetSelection.assets(*keys).without_checks() | _checks(
        catalogue, ["no_sequence_gap"]
    )
    return _job(catalogue, "sequence", chosen, "Give events their sequences.")


def _health(catalogue: Catalogue) -> Any:
    chosen: dg.AssetSelection = dg.AssetSelection.assets(catalogue.house("health"))
    chosen |= dg.AssetSelection.checks_for_assets(catalogue.house("policies"))
    return _job(
        catalogue,
        "health",
        chosen | _checks(catalogue, LIGHT),
        "Report what is wrong and what mends it, and make the checks that only look.",
    )


def _inspect(catalogue: Catalogue) -> Any:
    return _job(
        catalogue,
        "inspect",
        _checks(catalogue, DAILY),
        "Read the newest copies back, and look at the columns of their tables.",
    )


def _checks(catalogue: Catalogue, wanted: Iterable[str]) -> dg.AssetSelection:
    keys = [
        dg.AssetCheckKey(key, kind.name)
        for kind in kinds(catalogue)
        if kind.name in wanted
        for key in kind.subjects
    ]
    return dg.AssetSelection.checks(*keys)


class RunFailures:
    """What went wrong with some of many; at the end it is one failure."""

    def __init__(self, context: dg.OpExecutionContext) -> None:
        self._context = context
        self._said: list[str] = []
        self._failed: list[str] = []
        self._lasts = True

    @contextmanager
    def isolated(self, what: str) -> Iterator[None]:
        """What fails here is logged, and the others go on."""
        try:
            yield
        except Exception as error:  # of a driver, of Delta, of an object store
            self._context.log.exception(what)
            self._said.append(f"{what}: {_in_a_line(error)}")
            self._failed.append(what)
            self._lasts = self._lasts and lasts(error)

    def tell(self) -> None:
        """Failure when something failed; a tag of the run says with what."""
        if 0 < len(self._failed) <= MOST_NAMED:
            tag = {FAILED_TAG: json.dumps(self._failed)}
            self._context.instance.add_run_tags(self._context.run_id, tag)
        if self._said:
            raise dg.Failure("\n".join(self._said), allow_retries=not self._lasts)


def _in_a_line(error: Exception) -> str:
    """What went wrong; libraries in Rust put a stack of theirs behind it."""
    if isinstance(error, PenstockError):
        return str(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _seal(catalogue: Catalogue) -> dg.JobDefinition:
    @dg.op(name=catalogue.named(SEAL), config_schema=SEAL_CONFIG, retry_policy=common.RETRY)
    @of_database(catalogue.database)
    def run(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
        config, policies = context.op_config, database.policies()
        failures, there = RunFailures(context), _there(database)
        with database.connect() as connection:
            if not follows(connection, policies):
                context.log.warning("%s: only what is asked for is sealed", FOLLOWS_ANOTHER)
                policies = replace(policies, topics={})
        _require_known(config["topics"], {*there, *policies.topics, *catalogue.topics})
        for topic in config["topics"] or [p.topic for p in policies.topics.values() if p.seal]:
            if topic not in there:
                context.log.info("%s does not exist yet", topic)
                continue
            with failures.isolated(topic), database.connect() as connection:
                new = seal(connection, topic, **_seal_options(config, policies, topic))
                context.log.info("%s: %s log epochs sealed", topic, len(new))
                if new and topic in catalogue.topics:
                    for event in _sealed_hours(connection, catalogue, topic, set(map(key_of, new))):
                        context.log_event(event)
        failures.tell()

    @dg.job(
        name=catalogue.named("seal"),
        tags=OURS | SHORT,
        description="Cut log epochs of what has their size or their age.",
    )
    def job() -> None:
        run()

    return job


def _there(database: DatabaseResource) -> set[str]:
    """The topics that are in the database: the policy file may know more of them."""
    with database.connect() as connection:
        return {each.address for each in names.list_topics(connection)}


def _require_known(topics: Iterable[str], known: set[str]) -> None:
    """Refuse topics that neither the database has nor the policy file: nobody would miss them."""
    if unknown := sorted(set(topics) - known):
        names = ", ".join(sorted(known)[:MOST_TOLD]) or "none"
        more = len(known) - MOST_TOLD
        raise duties.refused(
            f"there is no topic {', '.join(unknown[:MOST_TOLD])}",
            f"the database and the policy file have: {names}{f' and {more} more' * (more > 0)}",
        )


def _seal_options(config: Any, policies: Policies, topic: str) -> dict[str, Any]:
    policy = policies.of_topic(topic).seal
    found: dict[str, Any] = {}
    if policy is not None:
        found = {"max_events": policy.max_events, "max_age_seconds": policy.max_age_seconds}
    found.update(
        {name: config[name] for name in ("max_events", "max_age_seconds") if name in config}
    )
    return found


def _sealed_hours(
    connection: Any, catalogue: Catalogue, topic: str, new: set[tuple[int, int]]
) -> Iterator[Any]:
    """The events of the hours in which new log epochs were sealed: just now, or an hour ago."""
    now = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    for back in (1, 0, -1):
        hour = now - dt.timedelta(hours=back)
        epochs = epochs_between(connection, topic, hour, hour + dt.timedelta(hours=1))
        if new & set(map(key_of, epochs)):
            yield sealed_event(catalogue, topic, hour_name(hour), epochs)


def _backfill(catalogue: Catalogue) -> dg.JobDefinition:
    @dg.op(
        name=catalogue.named(BACKFILL),
        pool=SPARK_POOL,
        config_schema=duties.config(**BACKFILL_CONFIG),
    )
    @of_database(catalogue.database)
    def run(
        context: dg.OpExecutionContext,
        database: DatabaseResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> None:
        from ops.backfill.workers import Places
        from ops.sinks.address import configured_sink

        def sink(address: str, beside: str) -> Sink:
            return configured_sink(address, beside=beside)

        outcomes = verbs.backfill_all(
            Setup.of_url(database.url(), *targets.every()),
            Places(spark.session, targets.target, targets.every, sink),
            request=context.op_config["request"] or None,
            name=f"dagster:{context.run_id}",
            engine=context.op_config["engine"],
        )
        duties.told(context, outcomes)
        # Also one that waits for its next attempt: this one has failed.
        failed = [f"request {e.unit.subject}: {e.error}" for e in outcomes if e.state != DONE]
        if failed:
            raise dg.Failure("\n".join(failed), allow_retries=False)

    @dg.job(
        name=catalogue.named("backfill"),
        tags=OURS,
        description="Work off a backfill request, or all that are due.",
    )
    def job() -> None:
        run()

    return job


Look = Callable[[dg.OpExecutionContext, DatabaseResource, ArchiveTargetResource, TopicPolicy, str],
                None]  # fmt: skip


def _audit(catalogue: Catalogue) -> dg.JobDefinition:
    def look(
        context: dg.OpExecutionContext,
        database: DatabaseResource,
        targets: ArchiveTargetResource,
        policy: TopicPolicy,
        target: str,
    ) -> None:
        from ops.archive.auditing import Share, audit_copies
        from ops.archive.read_back import plain_reader
        from ops.backfill.missing import audit_files

        url, place = database.url(), targets.target(target)
        lost = audit_files(url, policy.topic, place)
        share = Share.of_hour(AUDIT_DAYS)
        read = audit_copies(plain_reader(url), url, policy.topic, place, share)
        said = policy.topic, target, len(lost) + len(read.forgotten), read.copies
        context.log.info("%s on %s: %s copies lost, %s read back", *said)
        placement = policy.placement
        if placement is not None and placement.copies == len(placement.targets):
            with database.connect() as connection:
                ask_for_dropped(connection, policy.topic, target)

    return _over_targets(
        catalogue,
        "audit",
        "Look whether the file of every recorded copy is there, read this hour's share of the "
        f"copies back, so that each is read within {AUDIT_DAYS} days, and ask for what a new "
        "target lacks. What is lost is made again by a backfill request.",
        look,
    )


def _tidy(catalogue: Catalogue) -> dg.JobDefinition:
    def look(
        context: dg.OpExecutionContext,
        database: DatabaseResource,
        targets: ArchiveTargetResource,
        policy: TopicPolicy,
        target: str,
    ) -> None:
        from ops.backfill.missing import tidy

        removed = tidy(database.url(), policy.topic, targets.target(target))
        context.log.info("%s on %s: %s files removed", policy.topic, target, len(removed))

    description = "Remove files of killed runs and of replaced copies."
    return _over_targets(catalogue, "tidy", description, look)


def _over_targets(
    catalogue: Catalogue, name: str, description: str, look: Look
) -> dg.JobDefinition:
    """A job that looks at every topic on every target; one that fails stops no other."""

    @dg.op(name=catalogue.named(f"{name}_targets"))
    @of_database(catalogue.database)
    def run(
        context: dg.OpExecutionContext, database: DatabaseResource, targets: ArchiveTargetResource
    ) -> None:
        failures, there = RunFailures(context), _there(database)
        for policy in database.policies().topics.values():
            for target in policy.archive if policy.topic in there else ():
                with failures.isolated(f"{policy.topic} on {target}"):
                    look(context, database, targets, policy, target)
        failures.tell()

    @dg.job(name=catalogue.named(name), tags=OURS, description=description)
    def job() -> None:
        run()

    return job
