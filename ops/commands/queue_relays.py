"""``penstock relay --order``: the relay of a queue, and what has become of its events."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.commands.installation import Database, Installation
from penstock.cli.output import Format, Output, show
from penstock.database import connect

Order = Annotated[
    str | None,
    typer.Option(help="none or key: relay a queue, event by event. Default: a stream, in order."),
]


def events(
    subscription: str,
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    partition: Annotated[int, typer.Argument(min=0)],
    *,
    begin: Annotated[int, typer.Option("--from", min=1, help="The first sequence.")] = 1,
    max_events: Annotated[int, typer.Option(min=1, max=1000, help="The most events.")] = 100,
    database: Database = None,
    output: Output = Format.table,
) -> None:
    """Show what has become of events of a queue's relay: pending, in_flight, sent or failed."""
    from ops.relay.queue_status import relayed_events

    with connect(Installation(database).url) as connection:
        found = relayed_events(
            connection,
            subscription,
            topic,
            partition,
            from_sequence=begin,
            max_events=max_events,
        )
    show(found, output)
