"""Sinks as Dagster sees them: where the relays of the policy file write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from ops.policies.file import load

if TYPE_CHECKING:
    from ops.policies.settings import RelayPolicy


class SinkResource(dg.ConfigurableResource[None]):
    """Where relays write.  Pulsar's token is read from the environment where a sink is opened."""

    def address(self, relay: RelayPolicy) -> str:
        """The address of a relay's sink, as the file has it.  A variable is resolved now."""
        return load().sink_address(relay)
