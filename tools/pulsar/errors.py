"""What the tools for Pulsar raise."""

from __future__ import annotations


class PulsarUnavailable(RuntimeError):
    """A broker cannot be had on this machine; the text says what to do."""
