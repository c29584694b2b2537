"""Whether the schema fits the program, on any database."""

from __future__ import annotations

from typing import Any

from penstock.database import migrate
from penstock.doctor.findings import Finding, error, warning
from penstock.errors import NotMigrated, PenstockError


def examine_schema(connection: Any) -> list[Finding]:
    """At most one finding.  When it is an error, the doctor can examine nothing else."""
    try:
        pending = migrate.check(connection)
        migrate.require_usable(connection)
    except NotMigrated as problem:
        return [error("schema", problem.message, "penstock migrate")]
    except PenstockError as problem:
        return [error("schema", problem.message, problem.hint or "penstock migrate --status")]
    if not pending:
        return []
    names = ", ".join(line.name for line in pending)
    return [warning("schema", f"not applied yet: {names}", "penstock migrate")]
