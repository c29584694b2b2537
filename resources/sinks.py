"""Sinks as Dagster sees them: where the relays of the policy file write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from ops.policies.file import load
from ops.sinks.address import open_sink

if TYPE_CHECKING:
    from ops.policies.file import RelayPolicy
    from ops.sinks.base import Sink


class SinkResource(dg.ConfigurableResource[None]):
    """Opens the sink of a relay; Pulsar's token comes from the variable that is named here."""

    token_variable: str = "PENSTOCK_PULSAR_TOKEN"

    @contextmanager
    def opened(self, relay: RelayPolicy) -> Iterator[Sink]:
        """The open sink, closed at the end.  An address that names a variable is resolved now."""
        sink = self.at(load().sink_address(relay))
        try:
            yield sink
        finally:
            sink.close()

    def at(self, address: str, beside: str = "") -> Sink:
        """The sink of an address, open; ``beside`` names places of its own there."""
        token = os.environ.get(self.token_variable) or None
        return open_sink(address, token=token, beside=beside)
