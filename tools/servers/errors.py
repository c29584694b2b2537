"""What the tools for database servers raise."""

from __future__ import annotations

from penstock.errors import DatabaseUnavailable


class ServerUnavailable(DatabaseUnavailable):
    """A server cannot be fetched or started on this machine.  The text says what to do."""
