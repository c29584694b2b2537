"""The doctor: what is wrong with the database, each finding with the command that mends it.

    for finding in doctor("postgresql://..."):
        print(finding.what, finding.command)

It changes nothing.  It does not check the policies of topics: ``ops.health`` does that.
"""

from __future__ import annotations

from penstock.database import config
from penstock.doctor.findings import Finding as Finding, Limits as Limits, Severity as Severity


def doctor(url: str | None = None, limits: Limits | None = None) -> list[Finding]:
    """Everything that is wrong, errors first.  Opens its own connections, so it takes an address.

    Raises DatabaseUnavailable when the database does not answer.
    """
    url = url or config.database_url()
    if config.dialect_of_url(url) == "mysql":
        from penstock.doctor.mysql import examine
    else:
        from penstock.doctor.postgres import examine
    found = examine(url, limits or Limits())
    return sorted(found, key=lambda each: each.severity is not Severity.ERROR)
