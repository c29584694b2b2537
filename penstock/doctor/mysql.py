"""The doctor on MySQL and MariaDB."""

from __future__ import annotations

from penstock.doctor.findings import Finding, Limits
from penstock.errors import ConfigurationError


def examine(url: str, limits: Limits) -> list[Finding]:
    """Not there yet."""
    raise ConfigurationError("the doctor knows PostgreSQL only", hint="look at the server by hand")
