"""What keeps the house in order: sweep, policies with their drift check, health."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import HOUSE_GROUP, table
from dagster_project.naming import HEALTH, POLICIES, SEQUENCE, SWEEP
from ops.health import health
from ops.policy import Drift, apply, drift, retention_in_force
from ops.policy_file import load
from penstock.doctor import Finding, Severity
from penstock.upkeep.sweeping import sweep
from resources.database import DatabaseResource

_DRIFT_COLUMNS = ("of", "setting", "the file says", "the database has", "set by")


def build(catalogue: Catalogue) -> dg.Definitions:
    """The assets of the house."""
    return dg.Definitions(
        assets=[run_sweep, apply_policies, report_health], asset_checks=[policy_drift, no_errors]
    )


@dg.asset(key=SWEEP, group_name=HOUSE_GROUP, kinds={"postgres"})
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


@dg.asset(key=POLICIES, group_name=HOUSE_GROUP, kinds={"postgres", "yaml"})
def apply_policies(database: DatabaseResource) -> dg.MaterializeResult[None]:
    """Brings the database in line with the policy file, which is the truth.

    Sets retention and the policies of heartbeats, keeping, leases, metrics and retries, and creates
    the subscriptions of relays.  What a hand has set that the file does not name is left alone and
    shown by the check `policy_drift`.
    """
    with database.connect() as connection:
        changed = apply(connection, load())
        in_force = retention_in_force(connection)
    rows = [(r.topic, r.minimum_age_seconds, r.copies, r.version) for r in in_force.values()]
    return dg.MaterializeResult(
        metadata={
            "changes": len(changed),
            "changed": table(_DRIFT_COLUMNS, _drift_rows(changed)),
            "retention in force": table(("topic", "minimum age (s)", "copies", "version"), rows),
        }
    )


@dg.asset_check(asset=POLICIES)
def policy_drift(database: DatabaseResource) -> dg.AssetCheckResult:
    """The database follows the policy file."""
    with database.connect() as connection:
        found = drift(connection, load())
    return dg.AssetCheckResult(
        passed=not found,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"differences": table(_DRIFT_COLUMNS, _drift_rows(found))} if found else {},
    )


@dg.asset(key=HEALTH, deps=[SEQUENCE, SWEEP, POLICIES], group_name=HOUSE_GROUP, kinds={"postgres"})
def report_health(database: DatabaseResource) -> dg.MaterializeResult[None]:
    """What is wrong, or soon will be, each with the command that mends it."""
    findings = _findings(database)
    return dg.MaterializeResult(
        metadata={"findings": len(findings), "report": _report(findings)},
        data_version=dg.DataVersion(str(len(findings))),
    )


@dg.asset_check(asset=HEALTH)
def no_errors(database: DatabaseResource) -> dg.AssetCheckResult:
    """Nothing is wrong that needs somebody now."""
    findings = _findings(database)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return dg.AssetCheckResult(passed=not errors, metadata={"report": _report(findings)})


def _findings(database: DatabaseResource) -> list[Finding]:
    from penstock.database import connect

    # A driver connection of our own: the schema is looked at as well, outside any pool.
    with connect(database.url(), application_name="penstock health") as connection:
        return health(connection, load())


def _report(findings: Sequence[Finding]) -> dg.MarkdownMetadataValue:
    if not findings:
        return dg.MetadataValue.md("Nothing is wrong.")
    rows = [(f.severity.value, f.check, f.what, f"`{f.command}`") for f in findings]
    return table(("severity", "what", "finding", "mended by"), rows)


def _drift_rows(found: Sequence[Drift]) -> list[tuple[str, str, str, str, str]]:
    return [
        (each.subject, each.setting, each.wanted, each.found, each.origin or "") for each in found
    ]
