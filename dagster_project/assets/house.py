"""What keeps the house in order: sweep, storage, policies with their drift, health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from dagster_project import common
from dagster_project.assets.trends import trends
from dagster_project.catalogue import Catalogue
from dagster_project.common import HOUSE_GROUP, of_database, table
from ops.health import health
from ops.policies.policy import Drift, apply, drift, retention_in_force
from ops.retention.clean import drop_slices
from penstock import log, subscriptions
from penstock.doctor import Finding, Severity
from penstock.topics import names
from penstock.upkeep.sweeping import sweep
from resources.database import DatabaseResource

_DRIFT_COLUMNS = ("of", "setting", "the file says", "the database has", "set by")
START = """
**There is no topic yet.** Create one and publish to it:

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
        made = dg.asset(key=catalogue.house(name), group_name=group, kinds=kinds, **more)
        return made(of_database(catalogue.database)(function))

    def check(name: str, function: Callable[..., Any]) -> Any:
        made = dg.asset_check(asset=catalogue.house(name))
        return made(of_database(catalogue.database)(function))

    assets = [
        asset("sweep", run_sweep, retry_policy=common.RETRY),
        asset("storage", drop_storage),
        asset("policies", apply_policies, kinds={"yaml"}),
        asset("health", report_health),
    ]
    with common.beta_allowed():
        return [
            *dg.with_source_code_references(assets),
            check("policies", policy_drift),
            check("health", no_errors),
        ]


def run_sweep(database: DatabaseResource) -> dg.MaterializeResult[None]:
    """Frees the leases of consumers that died, also of subscriptions that nobody checks in to.

    Drops dead letters that are older than their policy says.
    """
    with database.connect() as connection:
        done = sweep(connection)
    return dg.MaterializeResult(
        metadata={
            "expired consumers": done.expired_consumers,
            "leases still locked": done.locked_leases,
            "dead letters dropped by age": done.expired_letters,
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
    """Brings the database in line with the policy file, which is the truth.

    Sets retention and the policies of heartbeats, keeping, leases, metrics and retries, and creates
    the subscriptions of relays.  What a hand has set that the file does not name is left alone and
    shown by the check `policy_drift`.
    """
    with database.connect() as connection:
        changed = apply(connection, database.policies())
        in_force = retention_in_force(connection)
    rows = [(r.topic, r.minimum_age_seconds, r.copies, r.version) for r in in_force.values()]
    return dg.MaterializeResult(
        metadata={
            "changes": len(changed),
            "changed": table(_DRIFT_COLUMNS, _drift_rows(changed)),
            "retention in force": table(("topic", "minimum age (s)", "copies", "version"), rows),
        }
    )


def policy_drift(database: DatabaseResource) -> dg.AssetCheckResult:
    """The database follows the policy file."""
    with database.connect() as connection:
        found = drift(connection, database.policies())
    return dg.AssetCheckResult(
        passed=not found,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"differences": table(_DRIFT_COLUMNS, _drift_rows(found))} if found else {},
    )


def report_health(
    context: dg.AssetExecutionContext, database: DatabaseResource
) -> dg.MaterializeResult[None]:
    """What is wrong, or soon will be, each with the command that mends it; plots of lag and rates.

    Made every half hour.  It looks at the whole database: sequencer, storage, relays, consumers,
    dead letters, copies and policies.
    """
    findings = _findings(database)
    with database.connect() as connection:
        topics = names.list_topics(connection)
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
            "report": _report(findings) if topics else dg.MetadataValue.md(START),
            **trends(context.instance, context.asset_key, figures),
        }
    )


def no_errors(database: DatabaseResource) -> dg.AssetCheckResult:
    """Nothing is wrong that needs somebody now."""
    findings = _findings(database)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return dg.AssetCheckResult(passed=not errors, metadata={"report": _report(findings)})


def _findings(database: DatabaseResource) -> list[Finding]:
    from penstock.database import connect

    # A driver connection of our own: the schema is looked at as well, outside any pool.
    with connect(database.url(), application_name="penstock health") as connection:
        return health(connection, database.policies())


def _report(findings: Sequence[Finding]) -> dg.MarkdownMetadataValue:
    if not findings:
        return dg.MetadataValue.md("Nothing is wrong.")
    rows = [(f.severity.value, f.check, f.what, f"`{f.command}`") for f in findings]
    return table(("severity", "what", "finding", "mended by"), rows)


def _drift_rows(found: Sequence[Drift]) -> list[tuple[str, str, str, str, str]]:
    return [
        (each.subject, each.setting, each.wanted, each.found, each.origin or "") for each in found
    ]
