"""What keeps the house in order: sweep, storage, policies with their drift, health."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dagster as dg

from dagster_project import checks, common, duties
from dagster_project.assets.trends import trends
from dagster_project.catalogue import Catalogue
from dagster_project.common import HOUSE_GROUP, code_of, of_database, table
from ops.duties import verbs
from ops.duties.setup import Setup
from ops.health import health
from ops.policies.file import Policies
from ops.policies.policy import (
    PolicyDrift,
    RetentionInForce,
    apply,
    awaited,
    drift,
    newest_versions,
    other_files,
    retention_in_force,
)
from ops.policies.values import said_size
from ops.probes import NO_ERRORS, POLICY_DRIFT, Probe, World
from ops.retention.clean import drop_slices
from penstock import log, subscriptions
from penstock.doctor import Finding
from penstock.subscriptions.policies import Policy, PolicyVersion
from penstock.topics import names
from resources.database import DatabaseResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

#: The asset of an empty database: its description says how to begin.
BEGIN = "begin_here"
_DRIFT_COLUMNS = ("of", "setting", "the file says", "the database has", "set by")
START = """
There is no topic yet. Create one and publish to it:

```
penstock topic create shop/orders --partitions 4 --create-namespaces
penstock publish shop/orders '{"hello": "world"}'
```

Then reload the code location, so that the topic gets its assets. Or stop this, and see a whole
bank: `make demo`, then `make dev DEMO=1`.
"""


def build(catalogue: Catalogue) -> list[Any]:
    """The assets and checks of the house of a database."""

    def asset(name: str, function: Callable[..., Any], **more: Any) -> Any:
        kinds = {catalogue.kind, *more.pop("kinds", ())}
        group = catalogue.group(HOUSE_GROUP)
        made = dg.asset(
            key=catalogue.house(name),
            group_name=group,
            kinds=kinds,
            # Dagster itself would name the place of `of_database`.
            metadata=code_of(function),
            **more,
        )
        return made(of_database(catalogue.database)(function))

    def check(name: str, probe: Probe, function: Callable[..., Any]) -> Any:
        key = catalogue.house(name)
        made = dg.asset_check(asset=key, name=probe.name, description=probe.about)
        return made(of_database(catalogue.database)(function))

    begin = dg.AssetSpec(
        catalogue.house(BEGIN),
        description=START,
        group_name=catalogue.group(HOUSE_GROUP),
        kinds={catalogue.kind},
        metadata=code_of(build),
    )
    return [
        *([begin] if catalogue.is_empty else []),
        asset("sweep", run_sweep, retry_policy=common.RETRY, config_schema=duties.config()),
        asset("storage", drop_storage),
        asset("policies", apply_policies, kinds={"yaml"}),
        asset("health", report_health),
        check("policies", POLICY_DRIFT, policy_drift),
        check("health", NO_ERRORS, no_errors),
    ]


def run_sweep(
    context: dg.AssetExecutionContext, database: DatabaseResource, spark: SparkResource
) -> dg.MaterializeResult[None]:
    """Frees the leases of consumers that died, also of subscriptions that nobody checks in to.

    Drops dead letters that are older than their policy says, and what removed subscriptions have
    left.
    """
    step = context.op_execution_context
    engine = step.op_config["engine"]
    done = verbs.sweep(Setup.of_url(database.url()), engine=engine, spark=spark.session)
    duties.require(duties.told(step, done))
    found = [each.result for each in done]
    return dg.MaterializeResult(
        metadata={
            "expired consumers": sum(each.expired_consumers for each in found),
            "leases still locked": sum(each.locked_leases for each in found),
            "dead letters dropped by age": sum(each.expired_letters for each in found),
            "copies of dead letters forgotten": sum(each.forgotten_copies for each in found),
            "rows of removed subscriptions": sum(each.leftover_rows for each in found),
            **duties.metadata(done),
        }
    )


def drop_storage(database: DatabaseResource) -> dg.MaterializeResult[None]:
    """Drops the tables of the log of which retention has left nothing that anybody needs.

    One that cannot be dropped now, because a transaction is open, is tried again by the next run.
    """
    done = drop_slices(database.url())
    rows = [(each.slice, each.state.value, each.detail) for each in done]
    return dg.MaterializeResult(
        metadata={"slices": len(done), "which": table(("slice", "state", "detail"), rows)}
    )


def apply_policies(database: DatabaseResource) -> dg.MaterializeResult[None]:
    """Brings the database in line with the policy file that it follows.

    Sets retention and the policies of heartbeats, keeping, leases, metrics and retries, and creates
    the subscriptions of relays.  What a hand has set that the file does not name is left alone and
    shown by the check `policy_drift`.  So is all that another file has set: with
    `penstock policy apply --take-over` the database follows this one.
    """
    with database.connect() as connection:
        wanted = database.policies()
        changed = apply(connection, wanted)
        left = drift(connection, wanted)
        missing = awaited(connection, wanted)
        in_force = retention_in_force(connection)
        versions = newest_versions(connection)
        followed = other_files(connection, wanted)
    return dg.MaterializeResult(
        metadata={
            "changes": len(changed),
            "policy file": wanted.file,
            **({"follows another file": ", ".join(followed)} if followed else {}),
            "changed": table(_DRIFT_COLUMNS, _drift_rows(changed)),
            "differs still": table(_DRIFT_COLUMNS, _drift_rows(left)),
            "not there yet": table(
                ("of", "created by"), ((f"{e.scope} {e.name}", f"`{e.create}`") for e in missing)
            ),
            "retention in force": _retentions(in_force.values()),
            "who set what": _versions(versions),
        }
    )


def _retentions(found: Iterable[RetentionInForce]) -> dg.MarkdownMetadataValue:
    columns = ("topic", "minimum age (s)", "copies", "at most", "version", "set by", "at")
    rows = (
        (r.topic, r.minimum_age_seconds, r.copies, said_size(r.max_bytes) if r.max_bytes else "",
         r.version, r.origin, _minute(r.updated_at))
        for r in found
    )  # fmt: skip
    return table(columns, rows)


def _versions(found: Iterable[tuple[Policy, PolicyVersion]]) -> dg.MarkdownMetadataValue:
    columns = ("at", "of", "policy", "version", "sets", "origin", "by")
    rows = (
        (_minute(version.updated_at), f"{policy.scope} {policy.name}".strip(), policy.kind,
         version.version, ", ".join(f"{k} {v}" for k, v in version.settings.items()),
         version.origin, version.updated_by)
        for policy, version in found
    )  # fmt: skip
    return table(columns, rows)


def _minute(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def policy_drift(database: DatabaseResource, targets: ArchiveTargetResource) -> dg.AssetCheckResult:
    """As `penstock verify` looks at it."""
    return _looked(POLICY_DRIFT, database, targets)


def report_health(
    context: dg.AssetExecutionContext, database: DatabaseResource
) -> dg.MaterializeResult[None]:
    """What is wrong, or soon will be, each with the command that mends it; plots of lag and rates.

    Made every hour.  It looks at the whole database: sequencer, storage, relays, consumers,
    dead letters, copies and policies.
    """
    policies = database.policies()
    findings = _findings(database, policies)
    with database.connect() as connection:
        topics = names.list_topics(connection)
        used = [each for each in topics if each.address != policies.canary]
        ever = sum(
            part.high_watermark
            for topic in topics
            for part in names.partition_ranges(connection, topic.address)
        )
        lags = subscriptions.lag(connection)
        waiting = log.status(connection).unsequenced_age_seconds
    figures = {
        "events ever": ever,
        "events waiting": sum(each.lag_events for each in lags),
        "longest wait (s)": float(max((each.lag_seconds for each in lags), default=0.0)),
        "unsequenced for (s)": float(waiting),
    }
    return dg.MaterializeResult(
        metadata={
            **figures,
            "topics": len(topics),
            "findings": len(findings),
            "report": _report(findings) if used else dg.MetadataValue.md(START),
            **trends(context.instance, context.asset_key, figures),
        }
    )


def no_errors(database: DatabaseResource, targets: ArchiveTargetResource) -> dg.AssetCheckResult:
    """As `penstock verify` looks at it."""
    return _looked(NO_ERRORS, database, targets)


def _looked(
    probe: Probe, database: DatabaseResource, targets: ArchiveTargetResource
) -> dg.AssetCheckResult:
    with database.connect() as connection:
        world = World(connection, database.url(), database.policies(), targets.usable)
        return checks.result_of(probe.look(world)(""))


def _findings(database: DatabaseResource, policies: Policies) -> list[Finding]:
    from penstock.database import connect

    # A driver connection of our own: the schema is looked at as well, outside any pool.
    with connect(database.url(), application_name="penstock health") as connection:
        return health(connection, policies)


def _report(findings: Sequence[Finding]) -> dg.MarkdownMetadataValue:
    if not findings:
        return dg.MetadataValue.md("Nothing is wrong.")
    rows = [(f.severity.value, f.check, f.what, f"`{f.command}`") for f in findings]
    return table(("severity", "what", "finding", "mended by"), rows)


def _drift_rows(found: Sequence[PolicyDrift]) -> list[tuple[str, str, str, str, str]]:
    return [
        (each.subject, each.setting, each.wanted, each.found, each.origin or "") for each in found
    ]
