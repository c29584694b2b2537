"""``penstock relay --order``: the relay of a queue, and what has become of its events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ops.commands.installation import Database, Installation
from penstock.cli.exit_codes import EXIT_NO
from penstock.cli.output import Format, Output, show
from penstock.database import connect

if TYPE_CHECKING:
    from ops.relay.queue_relay import QueueRelay

Order = Annotated[
    str | None,
    typer.Option(help="none or key: relay a queue, event by event. Default: a stream, in order."),
]


def queue_relay(
    here: Installation, subscription: str, sink: str, order: str, max_attempts: int | None
) -> QueueRelay:
    """A relay of a queue.  Attempts that were asked for count whatever their reason is."""
    from ops.relay.queue_relay import QueueRelay, QueueRelayOptions
    from ops.sinks.address import configured_sink

    options = QueueRelayOptions(order=order)
    if max_attempts is not None:
        options = replace(options, attempts=max_attempts, counts_absence=True)
    return QueueRelay(here.url, subscription, configured_sink(sink), options)


def show_relayed(relay: QueueRelay, max_seconds: float, output: Format) -> None:
    """Relay what is there."""
    result = relay.run_for(max_seconds)
    show([result], output)
    if not result.drained:
        raise typer.Exit(EXIT_NO)


def events(
    subscription: str,
    topic: Annotated[str, typer.Argument(help="namespace/path/topic")],
    partition: Annotated[int, typer.Argument(min=0)],
    *,
    begin: Annotated[int, typer.Option("--from", min=1, help="The first sequence.")] = 1,
    max_events: Annotated[int, typer.Option(min=1, max=1000)] = 100,
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
