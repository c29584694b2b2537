"""What the tools for Pulsar raise."""

from __future__ import annotations


class PulsarUnavailable(RuntimeError):
    """No broker can run on this machine.  The text says what to do."""
