"""Whether a restore lost commits that others have already seen, on any database."""

from __future__ import annotations

from typing import Any

from penstock.database import call
from penstock.doctor.findings import Finding, error


def examine_restores(connection: Any) -> list[Finding]:
    """At most one finding: positions beyond the end of the log are stopped until a reconcile."""
    beyond = call(connection, "restore_status")
    if not beyond:
        return []
    topic, partition, watermark, sequence, _, source, _ = beyond[0]
    others = f" ({len(beyond) - 1} more like it)" if len(beyond) > 1 else ""
    return [
        error(
            "restore",
            f"{source} has seen sequence {sequence} of {topic} partition {partition}, but the log "
            f"ends at {watermark}{others}: a restore lost commits",
            "penstock restore reconcile 'what was restored' --yes  "
            "# see before: penstock restore status",
        )
    ]
