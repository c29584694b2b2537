"""What the tools for database servers raise."""

from __future__ import annotations

from penstock.errors import DatabaseUnavailable


class ServerUnavailable(DatabaseUnavailable):
    """A server cannot be had or started on this machine; the text says what to do."""
