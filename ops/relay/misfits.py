"""Events that do not fit the schema of their topic and type, for a relay whose rules ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.sinks.base import RelayBlock
    from ops.sinks.routing import Routing
    from penstock.database import Connection


def misfits(
    connection: Connection, topic: str, block: RelayBlock, routing: Routing
) -> dict[int, str]:
    """The sequences of a block that do not fit, and the reason of each."""
    if not (routing.schemas and block.events):
        return {}
    # Imported here: only who asks for it needs the libraries of the schemas.
    from penstock.publishing.schemas import registry

    schemas = registry.in_force(connection, topic)
    found = (
        (event.sequence, registry.problem(schemas, event.type, event.payload))
        for event in block.events
    )
    return {sequence: reason for sequence, reason in found if reason}
